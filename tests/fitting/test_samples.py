"""Which axes of arrays the samples lie along, and the batches of an epoch."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from backends import assert_same_bits
from onnx import TensorProto

from onnx_ops import StepError
from onnx_ops.core.types import Shape, TensorType
from onnx_ops.fitting.columns import Table
from onnx_ops.fitting.samples import Samples
from onnx_ops.fitting.sources import read_npz
from onnx_ops.training.batch_axis import counted_axis


def inputs(**shapes: Shape | None) -> dict[str, TensorType]:
    return {name: TensorType(TensorProto.FLOAT, shape) for name, shape in shapes.items()}


def zeros(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    return {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}


CTC = inputs(log_probs=("T", "N", 5), lengths=("N",))


@pytest.mark.parametrize(
    ("arrays", "wanted", "options", "axes", "count", "size", "steps", "left_out"),
    [
        (zeros(x=(70, 3), y=(70,)), inputs(x=("N", 3), y=("N",)), {}, {"x": 0, "y": 0}, 70, 32, 3, 0),
        (zeros(x=(5, 3)), inputs(x=("N", 3)), {}, {"x": 0}, 5, 5, 1, 0),
        (zeros(x=(7, 3)), inputs(x=("N", 3)), {"batch_size": 3}, {"x": 0}, 7, 3, 3, 0),
        (zeros(x=(7, 3)), inputs(x=(None, 3)), {"batch_size": 7}, {"x": 0}, 7, 7, 1, 0),
        (zeros(x=(7, 3)), inputs(x=None), {"batch_size": 2}, {"x": 0}, 7, 2, 4, 0),
        # The step says how many.
        (zeros(x=(10, 3), y=(10,)), inputs(x=(4, 3), y=(4,)), {}, {"x": 0, "y": 0}, 10, 4, 2, 2),
        (zeros(x=(8, 3)), inputs(x=(4, 3)), {"batch_size": 4}, {"x": 0}, 8, 4, 2, 0),
        # What is given whole: of the very shape, without an axis.
        (zeros(x=(9, 3), w=(4,), s=()), inputs(x=("N", 3), w=(4,), s=()), {"batch_size": 9}, {"x": 0}, 9, 9, 1, 0),
        (zeros(x=(4, 3)), inputs(x=(4, 3)), {}, {}, 1, 1, 1, 0),
        ({}, {}, {}, {}, 1, 1, 1, 0),
        # The batch is not the first dimension.
        (
            zeros(log_probs=(9, 6, 5), lengths=(6,)),
            CTC,
            {"batch_dimension": "N", "batch_size": 2},
            {"log_probs": 1, "lengths": 0},
            6,
            2,
            3,
            0,
        ),
        (
            zeros(x=(6, 9), position=(9,)),
            inputs(x=("N", "T"), position=("T",)),
            {"batch_dimension": "N"},
            {"x": 0},
            6,
            6,
            1,
            0,
        ),
    ],
)
def test_axes(arrays, wanted, options, axes, count, size, steps, left_out) -> None:  # type: ignore[no-untyped-def]
    samples = Samples.of(Table("the data", arrays), wanted, **options)
    assert (samples.axes, samples.count, samples.batch_size) == (axes, count, size)
    assert (samples.steps, samples.left_out) == (steps, left_out)


@pytest.mark.parametrize(
    ("arrays", "wanted", "options", "problem"),
    [
        (zeros(x=(4,), y=(5,)), inputs(x=("N",), y=("N",)), {}, "numbers of samples: 4 of 'x', 5 of 'y'"),
        (zeros(x=(0,)), inputs(x=("N",)), {}, "the data has 0 samples, expected at least 1"),
        (zeros(x=(3,)), inputs(x=(4,)), {}, "the data has 3 samples, expected at least 4"),
        (
            zeros(x=(9,)),
            inputs(x=(4,)),
            {"batch_size": 3},
            "the batch size is 3, expected 4, as the step takes no",
        ),
        (zeros(x=(9,), y=(9,)), inputs(x=(4,), y=(5,)), {}, "the step takes 4 and 5 samples at a time"),
        (
            zeros(log_probs=(9, 6, 5), lengths=(6,)),
            CTC,
            {},
            "the first dimensions of the inputs have different names, 'T' of 'log_probs', 'N' of 'lengths'",
        ),
        (
            zeros(log_probs=(9,), lengths=(6,)),
            CTC,
            {"batch_dimension": "N"},
            r"'log_probs' of the data is float32 \(9,\), expected float32 \(T, N, 5\)",
        ),
        (zeros(x=(4,)), inputs(x=("N",)), {"batch_dimension": "M"}, "no input has a dimension named 'M'"),
    ],
)
def test_what_is_not_clear_is_refused(arrays, wanted, options, problem: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StepError, match=problem):
        Samples.of(Table("the data", arrays), wanted, **options)


def test_every_epoch_has_each_sample_once_in_an_order_of_its_own() -> None:
    arrays = {
        "x": np.arange(10, dtype=np.float32),
        "t": np.arange(20, dtype=np.float32).reshape(2, 10),
        "w": np.ones(3, np.float32),
    }
    wanted = inputs(x=("N",), t=("T", "N"), w=(3,))
    samples = Samples.of(Table("the data", arrays), wanted, 4, "N")
    orders = [samples.order(seed, epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(order) for order in orders}) == 3
    for order in orders:
        batches = [samples.batch(order, number) for number in range(samples.steps)]
        assert [len(batch["x"]) for batch in batches] == [4, 4, 2]
        seen = np.concatenate([batch["x"] for batch in batches])
        assert sorted(seen) == list(range(10))
        for batch in batches:
            assert_same_bits(batch["t"], np.stack([batch["x"], batch["x"] + 10]))
            assert batch["w"] is arrays["w"]
    assert (samples.order(0, 1) == orders[1]).all()


def test_a_step_of_fixed_size_leaves_the_rest_out() -> None:
    samples = Samples.of(Table("the data", zeros(x=(10,))), inputs(x=(4,)))
    order = samples.order(0, 0)
    assert [len(samples.batch(order, number)["x"]) for number in range(samples.steps)] == [4, 4]


def test_arrays_of_a_file(tmp_path: Path) -> None:
    """bfloat16 too, of which such files tell nothing but the size."""
    x, h = np.arange(3, dtype=np.float32), np.array([1, 2], ml_dtypes.bfloat16)
    np.savez(tmp_path / "data.npz", h=h, **{"batch.x": x})
    wanted = {"batch.x": TensorType(TensorProto.FLOAT, ("N",)), "h": TensorType(TensorProto.BFLOAT16, ("N",))}
    arrays = read_npz(tmp_path / "data.npz", wanted)
    assert list(arrays) == ["batch.x", "h"]
    assert_same_bits(arrays["batch.x"], x)
    assert_same_bits(arrays["h"], h)


def text(path: Path) -> None:
    path.write_text("no arrays")


def empty(path: Path) -> None:
    path.touch()


def single(path: Path) -> None:
    with path.open("wb") as file:
        np.save(file, np.zeros(3, np.float32))


def objects(path: Path) -> None:
    np.savez(path, x=np.array([{}], object))


def claiming(path: Path) -> None:
    """A header of more elements than there are."""
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (900000000000,), }\n"
    with zipfile.ZipFile(path, "w") as archive:
        content = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(12)
        archive.writestr("x.npy", content)


def cut(path: Path) -> None:
    np.savez(path, x=np.zeros(100, np.float32))
    path.write_bytes(path.read_bytes()[:200])


def doubles(path: Path) -> None:
    np.savez(path, x=np.zeros(3))


def others(path: Path) -> None:
    np.savez(path, y=np.zeros(3, np.float32))


@pytest.mark.parametrize(
    ("write", "problem"),
    [
        (
            text,
            r"data.npz is no .npz file, or not all of one; expected .*, such as numpy.savez\(path, x=...\) writes$",
        ),
        (empty, r"data.npz is no .npz file, or not all of one; "),
        (
            single,
            r"data.npz is no .npz file, or not all of one; expected .*, such as numpy.savez\(path, x=...\) writes$",
        ),
        (objects, r"'x' of .*data.npz is object \(1,\), expected float32 \(N,\)"),
        (claiming, r"data.npz is no .npz file: 'x' of .* is float32 \(900000000000,\) by its header, but has 12 bytes"),
        (cut, r"data.npz is no .npz file, or not all of one; "),
        (
            doubles,
            r"'x' of .*data.npz is float64 \(3,\), expected float32 \(N,\); convert it with"
            r" numpy.asarray\(..., numpy.float32\)",
        ),
        (others, r"data.npz lacks 'x' \(float32 \(N,\)\) and has 'y', where the step wants 'x'"),
    ],
)
def test_files_that_are_refused(write: Callable[[Path], None], problem: str, tmp_path: Path) -> None:
    write(tmp_path / "data.npz")
    with pytest.raises(StepError, match=problem):
        read_npz(tmp_path / "data.npz", inputs(x=("N",)))


def test_what_is_refused_is_not_decompressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays of other names, or of another dtype than one before."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("an array is read")

    np.savez_compressed(tmp_path / "data.npz", x=np.zeros(10**6), y=np.zeros(3, np.float32))
    monkeypatch.setattr(np.lib.format, "read_array", refuse)
    with pytest.raises(StepError, match="has 'y', where the step wants 'x'"):
        read_npz(tmp_path / "data.npz", inputs(x=("N",)))
    with pytest.raises(StepError, match=r"'x' of .*data\.npz is float64"):
        read_npz(tmp_path / "data.npz", inputs(y=("N",), x=("N",)))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_npz(tmp_path / "data.npz", {})


@pytest.mark.parametrize(
    ("shapes", "dimension", "axis"),
    [
        ({"x": ("N", 3), "y": ("N",)}, None, ("x", 0)),
        ({"weights": (3,), "x": (None, 3), "y": ("N",)}, None, ("y", 0)),
        ({"factor": (), "x": (None, 3)}, None, ("x", 0)),
        ({"factor": (), "x": None}, None, ("x", 0)),
        ({"factor": (), "x": (4, 3)}, None, None),
        ({"log_probs": ("T", "N", 5), "lengths": ("N",)}, "N", ("log_probs", 1)),
    ],
)
def test_what_counts_the_samples_of_a_batch(
    shapes: dict[str, Shape | None], dimension: str | None, axis: tuple[str, int] | None
) -> None:
    assert counted_axis(inputs(**shapes), dimension) == axis


@pytest.mark.parametrize("dimension", [None, "M"])
def test_what_counts_the_samples_has_to_be_clear(dimension: str | None) -> None:
    with pytest.raises(
        StepError, match="name the batch dimension" if dimension is None else "no input has a dimension"
    ):
        counted_axis(CTC, dimension)
