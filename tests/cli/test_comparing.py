"""`onnx-ops run` and `onnx-ops compare`, and the files that arrays are in."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
import safetensors.numpy
from command_line import answer
from typer.testing import CliRunner

from onnx_ops.arrays.comparison import compare
from onnx_ops.arrays.files import ArrayFileError, Layout, pairs, read_arrays
from onnx_ops.cli.app import app

NAN, INF = math.nan, math.inf


def invoke(*arguments: object, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == code, result.output
    return result.output


# --- measures --------------------------------------------------------------------------------------------------------


def test_measures_by_hand() -> None:
    """Relative errors 0, 1/2, 0.004 and 0.0005."""
    got, golden = np.array([[2, 3], [4.016, 4.002]]), np.array([[2, 2], [4, 4.0]])
    found = compare("x", got, golden, rtol=0.004001)
    assert found.problem is None
    assert found.shape == (2, 2)
    assert found.cosine == pytest.approx(
        (got * golden).sum() / math.sqrt((got**2).sum() * (golden**2).sum()), abs=1e-15
    )
    assert found.max_abs_err == 1
    assert found.max_relative_err == 0.5
    assert found.one_thousandth_err_ratio == 0.5
    assert found.five_thousandths_err_ratio == 0.75
    assert found.outside == 1
    assert found.worst == (0, 1)
    assert (found.got, found.golden) == (3, 2)
    assert found.max_ulp == 2.0**51


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, 1.75, -2.0, 3.5, 2.0**-10, 0.0])
def test_unit_in_the_last_place(dtype: npt.DTypeLike, value: float) -> None:
    """The next larger number is one unit off, at 0 the smallest of all; half a unit is what rounding costs."""
    here = np.array([value], dtype)
    after = (here.view(f"u{here.itemsize}") + 1).view(dtype)
    assert compare("x", after, here).max_ulp == 1
    assert compare("x", after, here.astype(np.float64)).max_ulp == 1
    assert compare("x", here, here).max_ulp == 0
    exact = np.random.default_rng(0).normal(size=1000)
    rounded = compare("x", exact.astype(np.float32).astype(dtype), exact.astype(np.float32))
    assert rounded.max_ulp <= 0.5


def test_nan_and_infinity() -> None:
    """Equal where they are the same; an infinity is what a number beyond the largest rounds to."""
    same = np.array([NAN, INF, -INF, 1], np.float32)
    found = compare("x", same, same.astype(np.float64))
    assert (found.max_ulp, found.max_abs_err, found.different_nonfinite, found.cosine) == (0, 0, 0, 1)
    for got, golden in ((NAN, 1), (1, NAN), (INF, -INF), (INF, 1), (1, INF), (NAN, INF)):
        found = compare("x", np.array([2, got], np.float32), np.array([2, golden], np.float32))
        assert (found.max_ulp, found.max_abs_err, found.max_relative_err) == (INF, INF, INF)
        assert (found.different_nonfinite, found.worst, found.one_thousandth_err_ratio) == (1, (1,), 0.5)
        assert math.isnan(found.cosine)
    beyond = np.array([65520, -65520, 65519.99])
    found = compare("x", np.array([INF, -INF, 65504], np.float16), beyond)
    assert found.different_nonfinite == 0
    assert found.max_ulp == pytest.approx(0.5, abs=1e-3)
    assert compare("x", np.array([INF], np.float16), beyond[2:]).different_nonfinite == 1


@pytest.mark.parametrize(
    ("got", "golden", "cosine", "relative"),
    [
        ([0, 0], [0, 0], 1, 0),
        ([1, 0], [0, 0], NAN, 2.0**52),
        ([0, 0], [1, 0], NAN, 1),
        ([1e300, 1e300], [1e300, 1e300], 1, 0),
        ([1, 0], [-1, 0], -1, 2),
        ([], [], 1, 0),
    ],
)
def test_zeros_and_empty(got: list[float], golden: list[float], cosine: float, relative: float) -> None:
    found = compare("x", np.array(got), np.array(golden))
    assert found.cosine == cosine or (math.isnan(cosine) and math.isnan(found.cosine))
    assert found.max_relative_err == pytest.approx(relative)
    assert found.five_thousandths_err_ratio == (1.0 if not got else np.mean(np.array(got) == golden))


def test_integers_are_compared_exactly() -> None:
    large = np.array([2**62 + 1, 5])
    assert compare("x", large, np.array([2**62, 5])).max_abs_err == 1
    assert compare("x", np.array([True, False]), np.array([True, True])).max_ulp == 1


def test_blocks_are_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(1)
    got, golden = (rng.normal(size=(7, 11)).astype(np.float32) for _ in range(2))
    whole = compare("x", got, golden)
    monkeypatch.setattr("onnx_ops.arrays.comparison.BLOCK", 5)
    parts = compare("x", got.T.copy().T, golden)
    assert parts.worst == whole.worst
    assert parts.cosine == pytest.approx(whole.cosine, rel=1e-15)
    assert (parts.max_ulp, parts.one_thousandth_err_ratio) == (whole.max_ulp, whole.one_thousandth_err_ratio)


# --- files -----------------------------------------------------------------------------------------------------------


def test_kinds_of_files(tmp_path: Path) -> None:
    x = np.arange(6, dtype=np.float16).reshape(2, 3)
    bf16 = x.astype(ml_dtypes.bfloat16)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "b.npy", bf16)
    np.savez(tmp_path / "z.npz", x=x, y=x.astype(int))
    safetensors.numpy.save_file({"x": x, "b": bf16}, tmp_path / "s.safetensors")
    (tmp_path / "r.bin").write_bytes(x.tobytes())
    layout = Layout.parsed("float16:2x3")
    found = {path.name: read_arrays(path, layout) for path in tmp_path.iterdir()}
    assert {name: list(arrays) for name, arrays in found.items()} == {
        "x.npy": ["x"], "b.npy": ["b"], "z.npz": ["x", "y"], "s.safetensors": ["b", "x"], "r.bin": ["r"],
    }  # fmt: skip
    assert found["b.npy"]["b"].dtype == found["s.safetensors"]["b"].dtype == bf16.dtype
    assert all(np.array_equal(a.astype(float), x.astype(float)) for arrays in found.values() for a in arrays.values())
    assert Layout.parsed("float32:") == Layout(np.dtype(np.float32), ())
    assert Layout.parsed("bfloat16").read(tmp_path / "r.bin").shape == (6,)


def test_wrong_files(tmp_path: Path) -> None:
    (tmp_path / "r.bin").write_bytes(b"12345")
    (tmp_path / "bad.npy").write_bytes(b"no")
    (tmp_path / "bad.npz").write_bytes(b"")
    (tmp_path / "bad.safetensors").write_bytes(b"{}")
    np.save(tmp_path / "o.npy", np.array([None]), allow_pickle=True)
    for name, layout, message in (
        ("r.bin", None, "expected --like"),
        ("r.bin", "int32", "has 5 bytes, expected 4: int32"),
        ("r.bin", "float16:2x3", r"has 5 bytes, expected 12: float16 \(2, 3\)"),
        ("bad.npy", None, "holds no arrays"),
        ("bad.npz", None, "holds no arrays"),
        ("bad.safetensors", None, "is no safetensors file"),
        ("o.npy", None, "holds no arrays"),
        ("x.txt", None, "expected one of .npy"),
    ):
        with pytest.raises(ArrayFileError, match=message):
            read_arrays(tmp_path / name, layout and Layout.parsed(layout))
    for text in ("floaty:3", "float16:3x", "float16:-1", "float16:ax2"):
        with pytest.raises(ArrayFileError, match="no dtype and shape such as float16:3x4"):
            Layout.parsed(text)
    with pytest.raises(ArrayFileError, match="a folder, expected two files or two folders"):
        list(pairs(tmp_path, tmp_path / "r.bin"))


# --- the commands ----------------------------------------------------------------------------------------------------


def test_run_and_compare(tmp_path: Path) -> None:
    """Each kind of input, by position and by name, beside the formula."""
    rng = np.random.default_rng(0)
    grad, own, target = (rng.random((3, 4)).astype(np.float32) for _ in range(3))
    np.save(tmp_path / "grad.npy", grad)
    (tmp_path / "self.bin").write_bytes(own.tobytes())
    (tmp_path / "target.bin").write_bytes(target.astype(np.float64).tobytes())
    likes = ["--like", "float32:3x4", "--like", "float64:3x4"]
    files = [tmp_path / "grad.npy", f"target={tmp_path / 'target.bin'}", f"self={tmp_path / 'self.bin'}"]
    likes = [likes[0], likes[3], likes[2], likes[1]]
    made = answer("run", "kldivbackward", *files, *likes, "--set", "reduction=mean", "--out", tmp_path / "out")
    (output,) = made["outputs"]
    assert (output["name"], output["shape"], output["file"]) == ("out", [3, 4], str(tmp_path / "out" / "out.npy"))
    np.testing.assert_allclose(output["values"], -grad * target / 12, rtol=1e-6)
    np.savez(tmp_path / "all.npz", grad_output=grad, self=own, target=target)
    invoke(
        "run", "KlDivBackward", tmp_path / "all.npz", "--set", "reduction=1", "--golden", "--out", tmp_path / "golden"
    )
    assert np.load(tmp_path / "golden" / "out.npy").dtype == np.float64
    shown = invoke("compare", tmp_path / "out", tmp_path / "golden", "--ulp", 2, "--cosine", 0.999, "--thousandth", 1)
    assert "out: pass" in shown
    assert "One Thousandth Err Ratio" in shown
    files = [tmp_path / "grad.npy", tmp_path / "self.bin", tmp_path / "target.bin"]
    text = invoke("run", "KlDivBackward", *files, "--like", "float32:3x4", "--like", "float64:3x4")
    assert text.startswith("out: float32 (3, 4)\n[[")


def test_outputs_as_raw_files(tmp_path: Path) -> None:
    x = np.arange(8, dtype=ml_dtypes.bfloat16).reshape(2, 2, 2)
    np.save(tmp_path / "x.npy", x)
    invoke("run", "BatchNormStats", tmp_path / "x.npy", "--format", "bin", "--out", tmp_path, "--backend", "reference")
    assert np.fromfile(tmp_path / "mean.bin", np.float32).tolist() == [2.5, 4.5]
    assert (tmp_path / "invstd.bin").stat().st_size == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["Hardshrunk", "x.npy"], "no op 'Hardshrunk'"),
        (["Hardshrink", "none.npy"], "none.npy: No such file or directory"),
        (["Hardshrink", "slef=x.npy"], "'slef' is no input of Hardshrink, expected one of self"),
        (["Hardshrink", "self=a=b.npy"], "a=b.npy: No such file or directory"),
        (["Hardshrink", "x.npy", "--set", "lambd"], "--set lambd has no value, expected NAME=VALUE"),
        (["Hardshrink", "x.npy", "--set", "lambda=1"], "unknown attribute 'lambda', expected lambd"),
        (["Hardshrink", "x.npy", "--set", "lambd=1,2"], "attribute 'lambd' is [1, 2], expected a number"),
        (["Hardshrink", "two.npz"], "'a' of two.npz is no input of Hardshrink, expected each of self"),
        (["Hardshrink", "self=two.npz"], "two.npz, for input 'self', holds 2 arrays, expected 1"),
        (["Hardshrink", "x.npy", "x.npy"], "got 2 inputs, expected at most 1: self"),
        (["Hardshrink", "x.npy", "--like", "int8", "--like", "int8"], "got 2 times --like, expected once"),
        (["Hardshrink", "x.npy", "--golden", "--backend", "kernel"], "backend is 'kernel', expected 'reference'"),
    ],
)
def test_run_refuses(arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.ones(2, np.float32))
    np.savez("two.npz", a=np.ones(2), b=np.ones(2))
    assert message in answer("run", *arguments, code=1)["error"]


def test_exit_status_of_compare(tmp_path: Path) -> None:
    got, golden = tmp_path / "got", tmp_path / "golden"
    for folder in (got, golden):
        (folder / "deep").mkdir(parents=True)
    np.save(golden / "deep" / "a.npy", np.array([1.0, 2.0]))
    (got / "deep" / "a.bin").write_bytes(np.array([1.0, 2.002], np.float32).tobytes())
    both = [got, golden, "--like", "float32:2"]
    for tolerance, code in (
        ((), 0), (("--rtol", 1.1e-3), 0), (("--rtol", 1e-4), 1), (("--atol", 3e-3), 0), (("--atol", 1e-3), 1),
        (("--rtol", 5e-4, "--atol", 1.1e-3), 0), (("--ulp", 1e5), 0), (("--ulp", 10), 1), (("--cosine", 1), 1),
        (("--thousandth", 0.5), 0), (("--thousandth", 0.6), 1),
    ):  # fmt: skip
        assert answer("compare", *both, *tolerance, code=code)["ok"] == (code == 0), tolerance
    np.save(golden / "b.npy", np.ones(2))
    np.save(got / "c.npy", np.ones(2))
    np.save(got / "d.npy", np.ones(2))
    np.save(golden / "d.npy", np.ones((2, 1)))
    np.save(got / "e.npy", np.array([NAN, 1]))
    np.save(golden / "e.npy", np.array([0, 1]))
    found = answer("compare", *both, code=1)
    assert {pair["name"]: pair["problem"] for pair in found["pairs"] if not pair["ok"]} == {
        "b": "missing beside the golden one", "c": "no golden one", "d": "shape (2,), golden (2, 1)", "e": None,
    }  # fmt: skip
    rows = list(csv.DictReader(io.StringIO(invoke("compare", *both, "--csv", code=1))))
    assert [row["Result"] for row in rows] == ["fail", "fail", "fail", "pass", "fail"]
    assert rows[3]["Name"] == "deep/a"
    assert float(rows[3]["MaxAbsErr"]) == pytest.approx(0.002, rel=1e-4)
    assert "expected two files or two folders" in answer("compare", got, golden / "b.npy", code=1)["error"]
    assert answer("compare", got, "none", code=1)["error"] == "none: No such file or directory"


def test_arrays_of_one_file_pair_by_name(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=np.ones(1), y=np.ones(2))
    safetensors.numpy.save_file({"y": np.ones(2), "z": np.ones(1)}, tmp_path / "b.safetensors")
    found = answer("compare", tmp_path / "a.npz", tmp_path / "b.safetensors", code=1)
    assert [(pair["name"], pair["ok"]) for pair in found["pairs"]] == [("x", False), ("y", True), ("z", False)]
