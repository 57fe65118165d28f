"""The commands `compile`, `build-library` and `prepare`."""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest
import steps
from command_line import FAILED, answer, error, run

from onnx_ops.core.op import Op
from onnx_ops.training.step_files import open_step


def test_compile_refuses_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    monkeypatch.setenv("ONNX_OPS_CACHE_DIR", str(blocked))
    assert str(blocked) in answer("compile", code=FAILED)["error"]
    assert "kernels cannot be compiled" in run("compile", code=FAILED).stderr


def test_compile_refuses_where_there_are_no_kernels(no_kernels: str) -> None:
    assert answer("compile", code=FAILED)["error"] == f"kernels cannot be compiled: {no_kernels}"


def test_build_library_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "ziglang", None)
    given = ("build-library", tmp_path / "library.so", "--ops", "Hardshrink")
    assert ": install one of cc, gcc, clang, the package ziglang, or set CC" in error(*given, "--cpu", "native")
    other = "aarch64-linux" if platform.machine() == "x86_64" else "x86_64-linux"
    expected = f"there is no C compiler for {other}: install one of {other}-gnu-gcc, the package ziglang, or set CC"
    assert expected in error(*given, "--target", other)


@pytest.mark.parametrize("option", ["--ops", "--for"])
def test_library_of_some_ops_orders_updates(
    option: str, good: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has OptimizationBarrier: without its kernel, Trainer would read parameters that it has updated in place."""
    built: list[str] = []

    def build(path: Path, ops: Sequence[Op], cpus: Sequence[str], target: str) -> None:
        built.extend(op.name for op in ops)
        path.touch()

    monkeypatch.setattr("onnx_ops.library.build.build", build)
    result = run("build-library", tmp_path / "library.so", option, "KlDiv" if option == "--ops" else good)
    assert result.exit_code == 0
    assert "OptimizationBarrier" in built
    assert len(built) > 1


def test_build_library_refuses_options(good: Path, tmp_path: Path) -> None:
    library, plain = tmp_path / "library.so", tmp_path / "plain.onnx"
    text = '<ir_version: 10, opset_import: ["": 21]> g (float x) => (float y) { y = Abs (x) }'
    onnx.save(onnx.parser.parse_model(text), plain)
    assert "there is no folder" in error("build-library", library / "nowhere" / "library.so")
    assert "no op 'hardshrunk'" in error("build-library", library, "--ops", "hardshrunk")
    assert "--ops and --for are both given" in error("build-library", library, "--ops", "Hardshrink", "--for", good)
    assert "has no ops of the domain" in error("build-library", library, "--for", plain)
    assert "processors are 'v5', expected some of " in error("build-library", library, "--cpu", "v5")
    assert "the target is 'sparc', expected one of aarch64-linux, " in error(
        "build-library", library, "--target", "sparc"
    )


def test_prepare(good: Path, tmp_path: Path) -> None:
    """The step has further graphs, which are replaced if it is prepared again; a trainer leaves them out."""
    step, prepared = tmp_path / "step.onnx", tmp_path / "prepared.onnx"
    model = steps.whole_step()
    onnx.save(model, step)
    graphs = ["in_place", "accumulation", "update"]
    assert answer("prepare", step, prepared) == {"step": str(step), "prepared": str(prepared), "graphs": graphs}
    content = prepared.read_bytes()
    assert f"with the graphs {', '.join(graphs)}" in run("prepare", prepared, prepared).stdout.replace("\n", " ")
    assert prepared.read_bytes() == content
    named = {function.name for function in onnx.load(prepared).functions}
    assert named - {function.name for function in model.functions} == set(graphs)
    opened, start = open_step(prepared)
    assert {function.name for function in opened.functions} == {function.name for function in model.functions}
    assert start.keys() == steps.start().keys()
    onnx.checker.check_model(prepared, full_check=True)
    assert "no training step" in error("prepare", good, prepared)
