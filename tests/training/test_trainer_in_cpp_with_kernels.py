"""The trainer in C++ with a library of the kernels: it updates the state in place, with the bits of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import backends
import built_library
import numpy as np
import onnx
import pytest
import steps
from cpp_trainer import CppError, CppTrainer
from native_checks import compiler
from test_accumulation import COUNTING
from test_update_order import batch as failing_batch
from test_update_order import failing
from test_update_order import start as failing_start
from test_workers import scaled_step

import onnx_ops
from models.sparse_coding import training as sparse_coding
from onnx_ops.integrations import prebuilt
from onnx_ops.library.build import build
from onnx_ops.library.objects import NATIVE
from onnx_ops.ops import op_named
from onnx_ops.training.step_files import prepare_step, step_model
from scripts.compiling import MissingError

Array = np.ndarray[Any, Any]
pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no compiler of C")

STATE_LOST = 6


def coding() -> onnx.ModelProto:
    """A captured step with AdamW."""
    started = sparse_coding.TRAINING.started(0)
    return step_model(started.model, started.state)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Path:
    """The library of all ops, with which Python runs too."""
    if not built_library.can_be_built():
        pytest.skip("a library cannot be built here")
    path = built_library.library()
    monkeypatch.setenv(prebuilt.VARIABLE, str(path))
    return path


def in_cpp(step: Path | Mapping[str, Path], kernels: Path, **options: Any) -> CppTrainer:
    try:
        return CppTrainer(step, kernels=kernels, **options)
    except MissingError as missing:
        pytest.skip(str(missing))


def assert_same(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert list(found) == list(expected)
    for name, array in expected.items():
        backends.assert_same_bits(found[name], array)


def counting_step() -> onnx.ModelProto:
    """A step whose update reads what the last batch writes."""
    return scaled_step(body=COUNTING)


def patches(size: int, seed: int) -> dict[str, Array]:
    return {"patches": np.random.default_rng(seed).normal(size=(size, 64)).astype(np.float32)}


def rows(size: int, seed: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(seed).normal(size=(size, 2)).astype(np.float32)}


@pytest.mark.parametrize("keep_previous", [False, True])
@pytest.mark.parametrize(("make", "batch"), [(coding, patches), (scaled_step, rows), (counting_step, rows)])
def test_the_same_bits(
    make: Callable[[], onnx.ModelProto],
    batch: Callable[[int, int], dict[str, Array]],
    keep_previous: bool,
    kernels: Path,
    tmp_path: Path,
) -> None:
    """In place and with two sets, of steps, accumulated batches, refused ones and checkpoints."""
    path = tmp_path / "step.onnx"
    prepare_step(make(), path)
    here = onnx_ops.Trainer(path, backends.options(), keep_previous=keep_previous)
    there = in_cpp(path, kernels, keep_previous=keep_previous)
    assert there.keeps_previous == here._state.keeps_previous == keep_previous
    for number, call in enumerate(["step", "step", "accumulate", "accumulate", "step", "step", "accumulate", "step"]):
        given = batch(3 + number, number)
        assert_same(getattr(there, call)(**given), getattr(here, call)(**given))
        assert_same(there.state_dict(), here.state_dict())
        for wrong in ({name: np.full_like(array, np.nan) for name, array in given.items()}, {"other": np.zeros(1)}):
            with pytest.raises(CppError, match=r"and the state is as before the step|the batch lacks"):
                getattr(there, call)(**wrong)
        assert_same(there.state_dict(), here.state_dict())
        if number == 3:
            there.save(tmp_path / "kept")
        assert_same(there.evaluate("train", **given), here.evaluate("train", **given))
    for trainer in (here, there):
        trainer.load(tmp_path / "kept")
    assert_same(there.step(**batch(5, 1)), here.step(**batch(5, 1)))
    assert_same(there.accumulate(**batch(5, 1)), here.accumulate(**batch(5, 1)))
    here.step()
    there.step()
    assert_same(there.state_dict(), here.state_dict())


def test_loss_that_is_not_checked(kernels: Path, tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    prepare_step(scaled_step(), path)
    here = onnx_ops.Trainer(path, backends.options(), check_finite=False)
    there = in_cpp(path, kernels, check_finite=False)
    assert not there.keeps_previous
    infinite = {"x": np.full((4, 2), np.inf, np.float32)}
    for call in ("accumulate", "step", "step"):
        assert_same(getattr(there, call)(**infinite), getattr(here, call)(**infinite))
    assert_same(there.state_dict(), here.state_dict())
    assert not np.isfinite(there.state_dict()["w"]).any()


@pytest.mark.parametrize("keep_previous", [False, True])
def test_several_steps(keep_previous: bool, kernels: Path, tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.onnx" for name in ("one", "other")}
    for path in paths.values():
        prepare_step(scaled_step(), path)
    here = onnx_ops.Trainer(paths, backends.options(), keep_previous=keep_previous)
    there = in_cpp(paths, kernels, keep_previous=keep_previous)
    assert there.keeps_previous == keep_previous
    for number, name in enumerate(["one", "other", "other", "one"]):
        batch = rows(1 + number, number)
        for call in ("accumulate", "step") if number == 2 else ("step",):
            assert_same(getattr(there[name], call)(**batch), getattr(here[name], call)(**batch))
            assert_same(there.state_dict(), here.state_dict())
    step = there["other"]
    del there
    assert_same(step.step(**batch), here["other"].step(**batch))  # a step keeps its trainer


def test_a_failure_during_the_update_loses_the_state(kernels: Path, tmp_path: Path) -> None:
    """Until another one is loaded; with two sets the state is as before."""
    path, kept = tmp_path / "step.onnx", tmp_path / "kept.safetensors"
    prepare_step(step_model(failing(), failing_start()), path)
    good, bad = failing_batch() | {"row": np.array([1])}, failing_batch() | {"row": np.array([7])}
    trainer = in_cpp(path, kernels)
    assert not trainer.keeps_previous
    trainer.step(**good)
    with pytest.raises(CppError, match=r"failed during its update: .*out of data bounds.* by load_state$") as found:
        in_cpp(path, kernels).step(**bad)
    assert found.value.kind == STATE_LOST
    before = trainer.state_dict()
    trainer.save(kept)
    with pytest.raises(CppError, match=rf"the last one is {kept}$"):
        trainer.step(**bad)
    for attempt in (
        lambda: trainer.step(**good),
        trainer.state_dict,
        lambda: trainer.learning_rate,
        lambda: trainer.evaluate("train", **good),
        lambda: trainer.load_state_dict({"v": before["v"]}, strict=False),
        lambda: trainer.save(tmp_path / "lost.safetensors"),
    ):
        with pytest.raises(CppError, match="the state is lost"):
            attempt()
    assert not (tmp_path / "lost.safetensors").exists()
    trainer.load(kept)
    assert_same(trainer.state_dict(), before)
    here = onnx_ops.Trainer(path, backends.options())
    here.load_state_dict(before)
    assert_same(trainer.step(**good), here.step(**good))
    trainer = in_cpp(path, kernels, keep_previous=True)
    before = trainer.state_dict()
    with pytest.raises(CppError, match="out of data bounds") as found:
        trainer.step(**bad)
    assert found.value.kind != STATE_LOST
    assert_same(trainer.state_dict(), before)


@pytest.mark.full
def test_two_sets_where_a_step_cannot_be_run_in_place(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without prepared graphs, and with a library that lacks a kernel of the step: function bodies are not ordered."""
    path = tmp_path / "step.onnx"
    onnx.save(scaled_step(), path)
    assert in_cpp(path, kernels).keeps_previous
    prepare_step(steps.whole_step(), path)
    kernels = tmp_path / kernels.name
    build(kernels, [op_named("OptimizationBarrier")], [NATIVE])
    monkeypatch.setenv(prebuilt.VARIABLE, str(kernels))
    there, here = in_cpp(path, kernels), onnx_ops.Trainer(path, backends.options())
    assert there.keeps_previous
    assert here._state.keeps_previous
    assert_same(there.step(**steps.batch()), here.step(**steps.batch()))
    assert_same(there.state_dict(), here.state_dict())
