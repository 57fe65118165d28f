"""What the trainer in JavaScript has besides steps: checkpoints, the trained model, evaluation, seeds, refusals."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import backends
import numpy as np
import onnx
import onnxruntime
import pytest
import steps
from onnxruntime_web import Node, Trainer, WebError, in_both_packages

import onnx_ops
from onnx_ops.core.step_format import CONDITION_NUMBERS, CONDITIONS, STEP_METADATA
from onnx_ops.training.errors import StepError
from onnx_ops.training.step_files import step_model

pytestmark = in_both_packages

Array = np.ndarray[Any, Any]


@pytest.fixture
def trainer(node: Node) -> Iterator[Trainer]:
    """Of the step that is written by hand."""
    trainer = Trainer(node, steps.whole_step())
    yield trainer
    trainer.release()


def in_python(model: onnx.ModelProto | None = None) -> onnx_ops.Trainer:
    return onnx_ops.Trainer(steps.whole_step() if model is None else model, backends.kernel_options())


def assert_same(found: dict[str, Array], expected: dict[str, Array]) -> None:
    """Names, dtypes, shapes and every bit."""
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape), name
        assert found[name].tobytes() == array.tobytes(), name


# --- checkpoints ------------------------------------------------------------------------------------------------------


def test_checkpoints_are_those_of_python(node: Node, tmp_path: Path) -> None:
    """The same bytes of the same state, for every dtype, and whatever the names."""
    state = steps.stored_state([(3,), (0, 2), ()])
    names = ("10", "9", "\x7f", 'a "b"\\\n', "größe", "\uff5e", "\U0001f600", "__proto__", "constructor")
    state |= {name: np.full(2, number, np.float32) for number, name in enumerate(names)}
    model = step_model(steps.carrying_step(state), state)
    here, there = in_python(model), Trainer(node, model)
    metadata = {"epoch": "3", "2": "\x7f\u2028", "größe": "\U0001f600"}
    here.step()
    here.save(tmp_path / "python.safetensors", metadata)
    there.step()
    written = there.save(metadata)
    assert written == (tmp_path / "python.safetensors").read_bytes()
    (tmp_path / "web.safetensors").write_bytes(written)
    here.step()
    there.step()
    assert here.load(tmp_path / "web.safetensors") == metadata
    assert there.load(written) == metadata
    assert_same(there.state(), here.state_dict())
    assert there.state()["count"] == 1
    there.release()


@pytest.mark.parametrize("blob", [False, True], ids=["bytes", "blob"])
def test_training_is_resumed_in_the_other_language(node: Node, trainer: Trainer, blob: bool, tmp_path: Path) -> None:
    here = in_python()
    here.step(**steps.batch())
    here.save(tmp_path / "python.safetensors", {"epoch": "1"})
    assert trainer.load((tmp_path / "python.safetensors").read_bytes(), blob=blob) == {"epoch": "1"}
    assert_same(trainer.state(), here.state_dict())
    trainer.step(**steps.batch(seed=1))
    (tmp_path / "web.safetensors").write_bytes(trainer.save())
    other = Trainer(node, steps.whole_step())
    for resumed in (here.load(tmp_path / "web.safetensors"), other.load(trainer.save())):
        assert resumed == {}
    assert_same(here.state_dict(), trainer.state())
    assert_same(other.state(), trainer.state())
    assert_same(other.step(**steps.batch(seed=2)), trainer.step(**steps.batch(seed=2)))
    other.release()


def test_frozen_weights_may_be_left_out(node: Node, tmp_path: Path) -> None:
    model = steps.whole_step(changes_mean=False)
    here, there = in_python(model), Trainer(node, model)
    here.save(tmp_path / "python.safetensors", frozen=False)
    written = there.save(frozen=False)
    assert written == (tmp_path / "python.safetensors").read_bytes()
    there.step(**steps.batch())
    with pytest.raises(WebError, match="the state lacks 'mean'"):
        there.load(written)
    there.load(written, strict=False)
    assert_same(there.state(), here.state_dict())
    there.release()


def test_checkpoints_that_are_refused(trainer: Trainer, tmp_path: Path) -> None:
    """The state is as before."""
    here = in_python()
    here.step(**steps.batch())
    path = tmp_path / "python.safetensors"
    here.save(path)
    good = path.read_bytes()
    here.save_weights(tmp_path / "weights.safetensors")
    rates = here.state_dict() | {"learning_rate": np.array(np.nan, np.float32)}
    before = trainer.state()
    for wrong, message in (
        (good[:-1] + bytes([good[-1] ^ 1]), "the checkpoint is damaged: its contents do not have the checksum"),
        (
            good.replace(b'"1.1"', b'"3.0"'),
            "the checkpoint cannot be read: its format version is 3.0, expected at most",
        ),
        (good.replace(b'"F32"', b'"F33"'), "is of dtype F33, which has no typed array"),
        (good.replace(b'"F32"', b'"F64"'), r"the checkpoint is no safetensors file: '.*' has \d+ bytes"),
        (good[:-1], "the checkpoint is no safetensors file: its tensors end at byte"),
        (b"", "the checkpoint is no safetensors file: it is too short for a header"),
        (b"\x02" + bytes(7) + b"[]", "the checkpoint is no safetensors file: its header is no object"),
        ((tmp_path / "weights.safetensors").read_bytes(), "the state lacks 'optimizer.momentum.linear.weight'"),
    ):
        with pytest.raises(WebError, match=message):
            trainer.load(wrong)
        assert_same(trainer.state(), before)
    with pytest.raises(WebError, match="a learning rate is NaN, expected a finite number of at least 0"):
        trainer.load_state(rates)
    with pytest.raises(WebError, match="the metadata have number for 'epoch', expected a string"):
        trainer.save({"epoch": 1})  # type: ignore[dict-item]
    assert_same(trainer.state(), before)
    trainer.load((tmp_path / "weights.safetensors").read_bytes(), strict=False)
    weights = {
        name: array for name, array in here.state_dict().items() if name in ("linear.weight", "linear.bias", "mean")
    }
    assert_same(trainer.state(), before | weights)
    none = step_model(steps.carrying_step(steps.stored_state([])), steps.stored_state([]))
    in_python(none).save(path)
    with pytest.raises(WebError, match=r"has no name of the step: it has 'count' and 0 others, expected names such as"):
        trainer.load(path.read_bytes(), strict=False)


# --- the trained model ------------------------------------------------------------------------------------------------


def test_export(trainer: Trainer, tmp_path: Path) -> None:
    """The model that Python exports: the same weights, and the same numbers with kernels and without."""
    here = in_python()
    here.step(**steps.batch())
    trainer.load_state(here.state_dict())
    here.export(tmp_path / "python.onnx")
    (tmp_path / "web.onnx").write_bytes(trainer.export())
    models = {name: onnx.load(tmp_path / f"{name}.onnx") for name in ("python", "web")}
    onnx.checker.check_model(models["web"], full_check=True)
    state = {tensor.name: tensor.raw_data for tensor in models["python"].graph.initializer}
    assert {tensor.name: tensor.raw_data for tensor in models["web"].graph.initializer} == state
    assert [value.name for value in models["web"].graph.input] == ["x"]
    names = {name: {(f.domain, f.name) for f in model.functions} for name, model in models.items()}
    assert names["web"] == names["python"]  # and not the loss
    for make in (onnx_ops.InferenceSession, onnxruntime.InferenceSession):
        for samples in (1, 6):
            x = steps.batch(samples, seed=samples)["x"]
            found, expected = (make(str(tmp_path / f"{name}.onnx")).run(None, {"x": x}) for name in ("web", "python"))
            np.testing.assert_array_equal(found[0], expected[0])
            np.testing.assert_allclose(trainer.infer(x=x)["probabilities"], expected[0], rtol=1e-6)


def test_averages_are_exported(node: Node, trainer: Trainer) -> None:
    there = Trainer(node, steps.averaging_step())
    there.step(x=np.array(1, np.float32))
    x = {"x": np.array(7, np.float32)}
    for averaged, weight in ((False, 2), (True, 4)):
        session = onnxruntime.InferenceSession(there.export(averaged=averaged))
        assert session.run(None, x) == [7 * weight]
    with pytest.raises(WebError, match="the step has no averages of weights: capture it with"):
        trainer.export(averaged=True)
    there.release()
    without = Trainer(node, steps.whole_step(inference=False))
    with pytest.raises(WebError, match="the step has no inference graph; capture it with inference="):
        without.export()
    without.release()


# --- evaluation -------------------------------------------------------------------------------------------------------


def test_evaluation(node: Node, trainer: Trainer) -> None:
    """The numbers of Python, and the state as before."""
    model = steps.averaging_step()
    here, there = in_python(model), Trainer(node, model)
    x = {"x": np.array(7, np.float32)}
    for _ in range(2):
        for mode in ("eval", "train"):
            assert_same(there.evaluate(mode, **x), here.evaluate(mode, **x))
        assert_same(there.step(**x), here.step(**x))
        assert_same(there.state(), here.state_dict())
    there.release()
    before = trainer.state()
    reported = trainer.evaluate("train", **steps.batch())
    assert_same(trainer.state(), before)
    assert_same(reported, trainer.step(**steps.batch()))
    with pytest.raises(WebError, match="the step has no evaluation graph; capture it with evaluation=True"):
        trainer.evaluate(**steps.batch())
    with pytest.raises(WebError, match="the mode is 'test', expected 'eval' or 'train'"):
        trainer.evaluate("test", **steps.batch())


# --- seeds and refusals -----------------------------------------------------------------------------------------------


def test_one_sample_where_the_statistics_of_a_batch_need_two(node: Node) -> None:
    trainer, batch = Trainer(node, steps.step_of_batch_norm().SerializeToString()), steps.batch(1)
    assert np.isfinite(trainer.evaluate(**batch)["loss"])
    assert trainer.infer(x=batch["x"])["probabilities"].shape == (1, steps.CLASSES)
    for refused in (trainer.step, functools.partial(trainer.evaluate, "train")):
        with pytest.raises(WebError, match=r"expected float32 \(N, 3\) with N >= 2"):
            refused(**batch)


def test_seed(node: Node, trainer: Trainer) -> None:
    assert trainer.seed == 7
    trainer.step(**steps.batch())
    assert trainer.seed == 8
    for seed in (0, 2**63 - 1, -(2**63)):
        trainer.seed = seed
        assert trainer.seed == seed == trainer.state()["seed"]
    trainer.step(**steps.batch())
    assert trainer.seed == -(2**63) + 1
    with pytest.raises(WebError, match=f"the seed is {2**63}, expected an integer of 64 bits"):
        trainer.seed = 2**63
    without = Trainer(node, steps.averaging_step())
    with pytest.raises(WebError, match="the step has no seed"):
        _ = without.seed
    without.release()


def test_a_loss_that_is_not_finite(trainer: Trainer) -> None:
    before, batch = trainer.state(), steps.batch()
    batch["x"][1, 2] = np.inf
    with pytest.raises(
        WebError, match=r"'loss' is (NaN|Infinity), and the state is as before the step: expected a finite number"
    ):
        trainer.step(**batch)
    assert_same(trainer.state(), before)


@pytest.mark.parametrize(
    ("step", "batches", "kinds"),
    [
        (steps.indexing_step, steps.index_batches, 5),  # of bounds, and of each range
        (steps.multiples_step, steps.multiple_batches, 3),  # of bounds, and of either size
    ],
)
def test_batches_that_python_refuses(
    node: Node, step: Callable[[], onnx.ModelProto], batches: Callable[[], Iterable[dict[str, np.ndarray]]], kinds: int
) -> None:
    """Sizes beyond the bounds of the capture, and indices out of range; with the messages of Python."""
    here, there = in_python(step()), Trainer(node, step())
    messages = set()
    for batch in batches():
        try:
            expected = here.step(**batch)
        except StepError as error:
            with pytest.raises(WebError, match=re.escape(str(error))):
                there.step(**batch)
            messages.add(re.sub(r"\[.*\] is -?\d+|is (int64|float32).*, expected|= \d+", "", str(error)))
        else:
            assert_same(there.step(**batch), expected)
    assert len(messages) == kinds, messages
    assert_same(there.state(), here.state_dict())
    there.release()


# --- conditions on data -----------------------------------------------------------------------------------------------


def test_batches_that_violate_a_condition(node: Node) -> None:
    """They are refused with the messages of Python, by steps before the state changes."""
    here, there = in_python(steps.conditional_step()), Trainer(node, steps.conditional_step())
    refused = set()
    for batch in steps.conditional_batches():
        for method, mode in (("evaluate", ["eval"]), ("evaluate", ["train"]), ("step", [])):
            try:
                expected = getattr(here, method)(*mode, **batch)
            except StepError as error:
                with pytest.raises(WebError, match=re.escape(str(error))):
                    getattr(there, method)(*mode, **batch)
                refused.add(str(error))
            else:
                assert_same(getattr(there, method)(*mode, **batch), expected)
            assert_same(there.state(), here.state_dict())
    assert len(refused) == 16, refused
    there.release()


def test_conditions_that_a_step_cannot_check(node: Node) -> None:
    """Python refuses to write such files."""
    for name, wanted in ((CONDITIONS, r"bool \(4,\)"), (CONDITION_NUMBERS, r"float64 \(4,\)")):
        model = steps.conditional_step()
        (output,) = (value for value in model.graph.output if value.name == name)
        output.type.tensor_type.shape.dim[0].dim_value = 3
        with pytest.raises(WebError, match=rf"output '{name}' is \w+ \(3,\), expected {wanted} for the step's cond"):
            Trainer(node, model)
        model.graph.output.remove(output)
        with pytest.raises(WebError, match=rf"output '{name}' is missing, expected {wanted}"):
            Trainer(node, model)
    for old, new, message in (
        ('"kind": "bool"', '"kind": "complex"', "'conditions' is no list of conditions"),
        ('"place": 3', '"place": 4', "depend on the numbers 0, 1, 2, 4, expected all from 0 on"),
        ('"format": "2.0"', '"format": "3.0"', r"its format version is 3\.0, expected at most 2\.0: update onnx_ops"),
    ):
        model = steps.conditional_step()
        (entry,) = (entry for entry in model.metadata_props if entry.key == STEP_METADATA)
        assert old in entry.value
        entry.value = entry.value.replace(old, new)
        with pytest.raises(WebError, match=message):
            Trainer(node, model)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
def test_conditions_of_captured_graphs(node: Node) -> None:
    """Those of the graphs in evaluation mode are in the errors of onnxruntime-web."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    from onnx_ops.torch import training_step

    class Guarded(torch.nn.Linear):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return super().forward(x if x.isfinite().all() else x.nan_to_num())

    def loss(model: Any, x: Any, labels: Any) -> Any:
        if labels.max() > 2:
            raise ValueError("class 3 is reserved")
        return torch.nn.functional.cross_entropy(model(x), labels)

    torch.manual_seed(0)
    model, batch = Guarded(3, 4), (torch.randn(5, 3), torch.tensor([0, 1, 2, 1, 0]))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    capture = training_step(
        model, loss, batch, optimizer, inference=True, evaluation=True, specialize=True, check=False
    )
    there = Trainer(node, step_model(capture.model, capture.state, capture.inference, capture.evaluation))
    x, labels = (tensor.numpy() for tensor in batch)
    for wrong, line in (((x, labels + 1), "if labels.max"), ((x * np.inf, labels), "return super")):
        for evaluates in (there.step, there.evaluate, functools.partial(there.evaluate, "train")):
            before = there.state()
            with pytest.raises(WebError, match=rf"test_trainer_in_node\.py, line \d+ \({line}"):
                evaluates(x=wrong[0], labels=wrong[1])
            assert_same(there.state(), before)
    with pytest.raises(WebError, match="return super"):
        there.infer(x=x * np.inf)
    np.testing.assert_allclose(there.infer(x=x)["output"], model(batch[0]).detach(), rtol=1e-5)
    losses = [there.evaluate(x=x, labels=labels)["loss"], there.step(x=x, labels=labels)["loss"]]
    np.testing.assert_allclose(losses, loss(model, *batch).detach(), rtol=1e-5)
    there.release()
