"""Labels and other indices that are out of range: what PyTorch refuses a trainer refuses, and no runtime computes."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import onnxruntime as ort
import pytest
import torch
from backends import kernel_options, options
from captures import training_step
from torch import Tensor, nn
from torch.nn import functional

import onnx_ops
from onnx_ops.torch.capture import Capture

SAMPLES, CLASSES = 8, 3
WEIGHT = torch.tensor([0.5, 2.0, 1.0])

Loss = Callable[[Tensor, Tensor], Tensor]
LOSSES: dict[str, Loss] = {
    "weighted": lambda x, y: functional.cross_entropy(x, y, WEIGHT),
    "smoothed_weighted": lambda x, y: functional.cross_entropy(x, y, WEIGHT, label_smoothing=0.1),
    "images": lambda x, y: functional.cross_entropy(x.reshape(2, 2, 2, 3).movedim(-1, 1), y.reshape(2, 2, 2)),
    "ignoring": lambda x, y: functional.cross_entropy(x, y, ignore_index=2),
    "ignoring_negative": lambda x, y: functional.cross_entropy(x, y, ignore_index=-1),
    "each_likelihood": lambda x, y: functional.nll_loss(x.log_softmax(1), y, reduction="none").mean(),
    "weighted_margin": lambda x, y: functional.multi_margin_loss(x, y, p=2, weight=WEIGHT, reduction="sum"),
}
NUMBERS = (-101, -100, -4, -3, -1, 0, 2, 3, 255, 2**40)


def plain_session(capture: Capture) -> ort.InferenceSession:
    """Of the step, with function bodies in place of kernels."""
    return ort.InferenceSession(onnx_ops.link(capture.model).SerializeToString(), options())


@functools.cache
def losses_step() -> tuple[Capture, nn.Module, Tensor, Tensor]:
    """A step that reports all losses, each of labels of its own."""
    torch.manual_seed(0)
    model, x, labels = nn.Linear(4, CLASSES), torch.randn(SAMPLES, 4), torch.randint(CLASSES, (SAMPLES,))

    def loss(model: nn.Module, x: Tensor, labels: dict[str, Tensor]) -> dict[str, Tensor]:
        found = {name: function(model(x), labels[name]) for name, function in LOSSES.items()}
        return {"loss": torch.stack(list(found.values())).sum()} | found

    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    capture = training_step(model, loss, (x, dict.fromkeys(LOSSES, labels)), optimizer)
    return capture, model, x, labels


def by_torch(loss: Loss, x: Tensor, labels: Tensor) -> float | None:
    """None if PyTorch refuses it."""
    try:
        return loss(x, labels).item()
    except (IndexError, RuntimeError):
        return None


def test_labels() -> None:
    """Refused by a trainer, whose state stays as it was; NaN in a graph on its own, in that loss alone."""
    capture, model, x, labels = losses_step()
    plain, trainer = plain_session(capture), onnx_ops.Trainer(capture, kernel_options())
    batch = {"x": x.numpy()} | {f"labels.{name}": labels.numpy() for name in LOSSES}
    before = trainer.state_dict()
    right = dict(zip(LOSSES, plain.run(list(LOSSES), capture.state | batch), strict=True))
    for name, loss in LOSSES.items():
        for number in NUMBERS:
            changed = labels.clone()
            changed[5] = number
            wanted = by_torch(loss, model(x), changed)
            given = batch | {f"labels.{name}": changed.numpy()}
            got = dict(zip(LOSSES, plain.run(list(LOSSES), capture.state | given), strict=True))
            expected = right | {name: np.float32(np.nan if wanted is None else wanted)}
            for other, value in expected.items():
                np.testing.assert_allclose(got[other], value, rtol=1e-5, err_msg=f"{name} {number}: {other}")
            if wanted is None:
                with pytest.raises(
                    onnx_ops.StepError, match=rf"^'labels\.{name}'\[5\] is {number}, expected .* 0 to 2"
                ):
                    trainer.step(**given)
            else:
                trainer.step(**given)
                trainer.load_state_dict(before)
            for key, array in trainer.state_dict().items():
                np.testing.assert_array_equal(array, before[key])


def test_ignored_labels_are_named() -> None:
    capture, _, x, labels = losses_step()
    batch = {"x": x.numpy()} | {f"labels.{name}": labels.numpy() for name in LOSSES}
    batch["labels.images"] = np.full(SAMPLES, -1)
    with pytest.raises(onnx_ops.StepError, match=r"index of 0 to 2, or -100, which is ignored$"):
        onnx_ops.Trainer(capture, kernel_options()).step(**batch)


def test_several_labels_for_a_sample() -> None:
    """-1 ends the labels of a sample; no other number may be out of range, also behind it."""
    torch.manual_seed(0)
    model, x = nn.Linear(4, CLASSES), torch.randn(3, 4)
    labels = torch.tensor([[0, -1, 1], [1, 2, -1], [-1, 0, 0]])

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return functional.multilabel_margin_loss(model(x), labels)

    capture = training_step(model, loss, (x, labels), torch.optim.SGD(model.parameters(), 0.1))
    plain, trainer = plain_session(capture), onnx_ops.Trainer(capture, kernel_options())
    for number in (-2, 3):
        for place in ((1, 1), (2, 2)):
            changed = labels.numpy().copy()
            changed[place] = number
            assert by_torch(functional.multilabel_margin_loss, model(x), torch.from_numpy(changed)) is None
            (value,) = plain.run(["loss"], capture.state | {"x": x.numpy(), "labels": changed})
            assert np.isnan(value)
            where = ", ".join(map(str, place))
            with pytest.raises(onnx_ops.StepError, match=rf"'labels'\[{where}\] is {number}, expected .* or -1"):
                trainer.step(x=x.numpy(), labels=changed)


# --- other indices ----------------------------------------------------------------------------------------------------

ROWS, WIDTH = 5, 4
LOOKUPS: dict[str, Loss] = {
    "embedding": lambda w, t: functional.embedding(t, w),
    "columns": lambda w, t: functional.embedding(t[:, 1], w) + functional.embedding(t[:, 2], w[1:]),
    "next_tokens": lambda w, t: functional.cross_entropy(
        functional.embedding(t[:, :-1], w).movedim(2, 1), t[:, 1:] % 4
    ),
    "computed": lambda w, t: functional.embedding(t + 1 - 1, w),
    "either_end": lambda w, t: w[t],
    "one_hot": lambda w, t: functional.one_hot(t, ROWS).to(w.dtype) @ w,
    "two_axes": lambda w, t: w[t, t[:, :1].clamp(0, WIDTH - 1)],
    "gather": lambda w, t: w.gather(0, t[:, :WIDTH]),
    "index_select": lambda w, t: w.index_select(0, t[0]),
    "scatter_add": lambda w, t: torch.zeros(ROWS, WIDTH).scatter_add(0, t[:, :WIDTH], w[:3].clone()),
    "index_add": lambda w, t: torch.zeros(ROWS, WIDTH).index_add(0, t[1, :ROWS], w),
    "index_put": lambda w, t: torch.zeros(ROWS, WIDTH).index_put((t[1, :ROWS],), w, accumulate=True),
}


def test_lookups() -> None:
    """Refused where PyTorch refuses, the element named; else the same number. A graph on its own refuses it too."""
    torch.manual_seed(0)
    model = nn.Linear(WIDTH, ROWS, bias=False)
    tokens = torch.randint(ROWS - 1, (3, 7))

    def number(name: str, weight: Tensor, tokens: Tensor) -> Tensor:
        return LOOKUPS[name](weight, tokens).square().sum()

    def loss(model: nn.Linear, tokens: dict[str, Tensor]) -> Tensor:
        found = [number(name, model.weight, tokens[name]) for name in LOOKUPS]
        return torch.stack(found).sum()

    capture = training_step(model, loss, (dict.fromkeys(LOOKUPS, tokens),), torch.optim.SGD(model.parameters(), 0.1))
    plain, trainer = plain_session(capture), onnx_ops.Trainer(capture, kernel_options())
    batch = {f"tokens.{name}": tokens.numpy() for name in LOOKUPS}
    before = trainer.state_dict()
    right = sum(number(name, model.weight, tokens).item() for name in LOOKUPS)
    refused = 0
    for name in LOOKUPS:
        for index, place in ((-1, (1, 1)), (-6, (1, 2)), (ROWS, (0, 2)), (ROWS, (1, 0)), (-1, (2, 6)), (3, (1, 1))):
            changed = tokens.clone()
            changed[place] = index
            wanted = by_torch(functools.partial(number, name), model.weight, changed)
            given = batch | {f"tokens.{name}": changed.numpy()}
            if wanted is None:
                refused += 1
                message = rf"^'tokens\.{name}'\[{place[0]}, {place[1]}\] is {index}, expected an index of"
                with pytest.raises(Exception, match=message if name != "computed" else "out of data bounds"):
                    trainer.step(**given)
                with pytest.raises(Exception, match=r"out of data bounds|[Oo]ut of range|invalid index"):
                    plain.run(["loss"], capture.state | given)
            else:
                expected = right - number(name, model.weight, tokens).item() + wanted
                np.testing.assert_allclose(trainer.step(**given)["loss"], expected, rtol=1e-5, err_msg=name)
            trainer.load_state_dict(before)
    assert refused > 2 * len(LOOKUPS)


def test_as_many_classes_as_samples() -> None:
    """There is no range that a trainer could know; the loss is NaN."""
    torch.manual_seed(0)
    model, x, labels = nn.Linear(4, 4), torch.randn(6, 4), torch.arange(6)

    def loss(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(x) @ x.T, labels)

    rows = {0: torch.export.Dim("N")}
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    capture = training_step(model, loss, (x, labels), optimizer, dynamic_shapes=(rows, rows))
    trainer = onnx_ops.Trainer(capture, kernel_options(), check_finite=False)
    for count in (6, 3):
        wanted = loss(model, x[:count], labels[:count]).item()
        given = {"x": x[:count].numpy(), "labels": np.arange(count)}
        np.testing.assert_allclose(trainer.step(**given)["loss"], wanted, rtol=1e-5)
        for step in (-1, 1):
            assert np.isnan(trainer.step(**given | {"labels": np.arange(count) + step})["loss"])
            trainer.load_state_dict(capture.state)
