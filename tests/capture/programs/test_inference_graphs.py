"""The inference graph of a capture: of the model's first call, without what only a loss needs, or of a function."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import Capture, CaptureError, gradients, training_step


class Tagger(nn.Module):
    """Computes its own loss if it is given labels, as models of transformers do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(7, 6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, 3)

    def forward(self, ids: Tensor, mask: Tensor, labels: Tensor | None = None) -> dict[str, Any]:
        hidden = self.dropout(self.embedding(ids)) * mask[..., None]
        logits = self.head(hidden)
        result = {"logits": logits, "hidden": [hidden]}
        if labels is None:
            return result
        return {"loss": functional.cross_entropy(logits.flatten(0, 1), labels.flatten())} | result


def batch(samples: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(0, 7, (samples, 5), generator=generator)
    mask = torch.randint(0, 2, (samples, 5), generator=generator).float()
    return ids, mask, torch.randint(0, 3, (samples, 5), generator=generator)


def of_model(model: nn.Module, ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
    return model(ids, mask, labels=labels)["loss"]


def capture(model: nn.Module, loss: Any = of_model, **options: Any) -> Capture:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    shapes = ({0: Dim("N")},) * 3
    return training_step(model, loss, batch(4), optimizer, dynamic_shapes=shapes, **options)


def names(model: onnx.ModelProto | None) -> tuple[list[str], list[str]]:
    assert model is not None
    return [value.name for value in model.graph.input], [value.name for value in model.graph.output]


def exported(step: Capture, folder: Path) -> tuple[ort.InferenceSession, onnx_ops.Trainer]:
    """The exported model after two steps, and the trainer that has made them."""
    trainer = onnx_ops.Trainer(step)
    for seed in range(2):
        trainer.step(**dict(zip(("ids", "mask", "labels"), (t.numpy() for t in batch(6, seed)), strict=True)))
    trainer.export(folder / "model.onnx")
    return ort.InferenceSession(folder / "model.onnx"), trainer


def loaded(model: nn.Module, trainer: onnx_ops.Trainer) -> nn.Module:
    onnx_ops.torch.load_into_torch(trainer.state_dict(), model)
    return model.eval()


def close(got: Any, wanted: Tensor) -> None:
    np.testing.assert_allclose(got, wanted.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scaled", [False, True])
def test_inputs_that_only_the_loss_needs_are_dropped(tmp_path: Path, scaled: bool) -> None:
    model = Tagger()
    step = capture(model, lambda m, ids, mask, labels: of_model(m, ids, mask, labels) * (0.5 if scaled else 1.0))
    assert names(step.inference) == (["ids", "mask"], ["output.logits", "output.hidden.0"])
    session, trainer = exported(step, tmp_path)
    ids, mask, _ = batch(3, 7)
    logits, hidden = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    wanted = loaded(model, trainer)(ids, mask)
    close(logits, wanted["logits"])
    close(hidden, wanted["hidden"][0])


class Encoder(nn.Module):
    """A model with a padding mask, for which PyTorch uses nested tensors in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layer = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True)
        self.embedding, self.encoder, self.head = nn.Embedding(7, 8), nn.TransformerEncoder(layer, 2), nn.Linear(8, 3)

    def forward(self, ids: Tensor, padding: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(ids), src_key_padding_mask=padding)[:, 0])


def test_a_transformer_with_a_padding_mask() -> None:
    def loss(model: nn.Module, ids: Tensor, padding: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(model(ids, padding), labels)

    def padded(samples: int) -> tuple[Tensor, Tensor]:
        lengths = torch.arange(samples) % 4 + 2
        return torch.randint(7, (samples, 5)), torch.arange(5) >= lengths[:, None]

    model = Encoder()
    example = (*padded(4), torch.tensor([0, 1, 2, 0]))
    assert torch.backends.mha.get_fastpath_enabled()
    step = gradients(model, loss, example, dynamic_shapes=({0: Dim("N")},) * 3)
    assert torch.backends.mha.get_fastpath_enabled()
    assert step.inference is not None
    ids, padding = padded(6)
    (found,) = onnx_ops.InferenceSession(step.inference).run(None, {"ids": ids.numpy(), "padding": padding.numpy()})
    with torch.no_grad(), warnings.catch_warnings(action="ignore"):  # of PyTorch, about its nested tensors
        close(found, model.eval()(ids, padding))


def test_a_function_of_the_model(tmp_path: Path) -> None:
    model = Tagger()
    step = capture(model, inference=lambda m, mask, ids: m(ids, mask)["logits"].softmax(-1))
    assert names(step.inference) == (["mask", "ids"], ["output"])
    session, trainer = exported(step, tmp_path)
    ids, mask, _ = batch(3, 7)
    (found,) = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})
    close(found, loaded(model, trainer)(ids, mask)["logits"].softmax(-1))


def test_a_function_of_arguments_in_containers() -> None:
    def loss(m: nn.Module, *batch: Tensor, weight: Tensor | None = None) -> Tensor:
        return functional.cross_entropy(m(batch[0]["x"]), batch[1], weight)

    torch.manual_seed(0)
    model, x, y = nn.Linear(4, 3), torch.randn(6, 4), torch.randint(0, 3, (6,))
    step = gradients(
        model, loss, ({"x": x, "unused": x[0]}, y), inference=lambda m, *batch, power=2: m(batch[0]["x"]) ** power
    )
    assert names(step.inference) == (["batch.0.x"], ["output"])
    assert step.inference is not None
    (found,) = onnx_ops.InferenceSession(step.inference).run(None, {"batch.0.x": x.numpy()})
    close(found, model(x) ** 2)


class Energy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).square().sum()


def test_models_that_return_one_number() -> None:
    """A number that is the loss leaves nothing; one that the loss is computed from stays."""
    x = torch.randn(5, 3)
    step = gradients(Energy(), lambda m, x: (m(x) - 1).square(), (x,))
    assert names(step.inference) == (["x"], ["output"])
    trainer = onnx_ops.Trainer(gradients(Energy(), lambda m, x: m(x), (x,)))
    assert not trainer.has_inference_graph
    with pytest.raises(onnx_ops.StepError, match="capture it with inference=, a function of the model"):
        trainer.export("model.onnx")


class Conditional(nn.Module):
    """Returns a distribution, as the flows of zuko do."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(self.layer(x), 2.0)


def test_models_that_return_no_tensors() -> None:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return -model(x).log_prob(y).mean()

    example = torch.randn(4, 3), torch.randn(4, 2)
    step = gradients(Conditional(), loss, example, inference=True)
    assert step.inference is None
    assert names(gradients(Conditional(), loss, example, inference=lambda m, x: m(x).mean).inference)[0] == ["x"]
    with pytest.raises(CaptureError, match="returns no tensors: let it return some"):
        gradients(Conditional(), loss, example, inference=lambda m, x: m(x))


class Pooled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor, sets: Tensor, options: dict[str, int]) -> Tensor:
        return x.new_zeros(options["count"], 2).index_add(0, sets, self.layer(x))


@pytest.mark.parametrize("dynamic", [False, True], ids=["constant", "dynamic"])
def test_numbers_that_depend_on_dynamic_sizes(dynamic: bool) -> None:
    """The graph would have the example's 3 sets for any batch."""
    example = torch.randn(5, 3), torch.tensor([0, 2, 1, 1, 0]), torch.randn(3, 2)
    rows, sets = Dim("rows"), Dim("sets")
    step = gradients(
        Pooled(),
        lambda m, x, index, y: (m(x, index, {"count": y.shape[0]}) - y).square().mean(),
        example,
        dynamic_shapes=({0: rows}, {0: rows}, {0: sets}) if dynamic else None,
    )
    assert (step.inference is None) is dynamic


@pytest.mark.parametrize("again", [False, True])
def test_calls_within_transforms_do_not_count(again: bool) -> None:
    """The tensors of a call within vmap do not exist after it."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        slopes = torch.vmap(torch.func.grad(lambda row: model(row).sum()))(x)
        return slopes.square().sum() + (model(2 * x).sum() if again else 0)

    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh())
    step = gradients(model, loss, (torch.randn(4, 3),), dynamic_shapes=({0: Dim("N")},))
    if not again:
        assert step.inference is None
        return
    assert names(step.inference) == (["input"], ["output"])
    x = torch.randn(5, 3)
    assert step.inference is not None
    session = ort.InferenceSession(step.inference.SerializeToString())
    np.testing.assert_allclose(session.run(None, {"input": x.numpy()})[0], model(x).detach().numpy(), rtol=1e-5)


def test_a_first_call_with_one_row_of_a_dynamic_number_is_refused() -> None:
    """PyTorch takes a size of 1 for a static one."""

    def halves(model: nn.Module, x: Tensor) -> Tensor:
        half = len(x) // 2
        return model(x[:half]).square().mean() + model(x[half:]).mean()

    model, dims = nn.Linear(4, 3), {"x": {0: Dim("rows")}}
    with pytest.raises(CaptureError, match=r"'input' of shape \(1, 4\), whose axis 0 is dynamic: expected an example"):
        gradients(model, halves, (torch.randn(3, 4),), dynamic_shapes=dims)
    captured = gradients(model, halves, (torch.randn(4, 4),), dynamic_shapes=dims)
    assert captured.inference is not None


def test_functions_that_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"parameter 'words', which is no argument of the loss; .* ids, mask"):
        capture(Tagger(), inference=lambda m, words, mask: m(words, mask)["logits"])
    with pytest.raises(CaptureError, match="no parameter, expected one of the model and of arguments of the loss"):
        capture(Tagger(), inference=lambda: None)


class Matching(nn.Module):
    """Scores some texts for each image."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.texts, self.images = nn.Embedding(7, 4), nn.Linear(3, 4)

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        texts = self.texts(ids).mean(1).reshape(images.shape[0], ids.shape[0] // images.shape[0], 4)
        return (texts * self.images(images)[:, None]).sum(-1)


def test_arguments_with_several_rows_for_each_sample() -> None:
    """As OwlViT takes the ids of all texts of all images as one matrix."""
    model, rows = Matching(), Dim("rows")
    example = torch.randn(3, 3), torch.randint(7, (3, 2, 5))
    captured = training_step(
        model,
        lambda model, images, ids: model(images, ids.flatten(0, 1)).square().mean(),
        example,
        torch.optim.SGD(model.parameters()),
        dynamic_shapes={"images": {0: rows}, "ids": {0: rows}},
    )
    images, ids = torch.randn(5, 3), torch.randint(7, (10, 5))
    assert captured.inference is not None
    session = onnx_ops.InferenceSession(captured.inference)
    (found,) = session.run(None, {"images": images.numpy(), "ids": ids.numpy()})
    close(found, model(images, ids).detach())


def test_arguments_of_two_batches_each() -> None:
    """As contrastive losses join two views of each sample."""

    class Product(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 4)

        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            result: Tensor = self.layer(one) * other
            return result

    model, rows = Product(), Dim("rows", max=50)
    captured = training_step(
        model,
        lambda model, x, y: model(torch.cat([x, x + 1]), torch.cat([y, -y])).square().mean(),
        (torch.randn(3, 3), torch.randn(3, 4)),
        torch.optim.SGD(model.parameters()),
        dynamic_shapes={"x": {0: rows}, "y": {0: rows}},
    )
    one, other = torch.randn(5, 3), torch.randn(5, 4)
    assert captured.inference is not None
    session = onnx_ops.InferenceSession(captured.inference)
    (found,) = session.run(None, {"one": one.numpy(), "other": other.numpy()})
    close(found, model(one, other).detach())


def test_float64_models_with_norms_in_float32() -> None:
    """As the RMS norms of transformers."""

    class Normalized(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(37, 64), nn.Linear(64, 3)

        def forward(self, x: Tensor) -> Tensor:
            hidden = self.first(x).float()
            hidden = hidden * torch.rsqrt(hidden.square().mean(-1, keepdim=True) + 1e-6)
            return self.last(hidden.to(x.dtype))

    torch.manual_seed(0)
    model = Normalized().double()
    x = torch.randn(64, 37, dtype=torch.float64)
    capture = training_step(
        model, lambda m, x: m(x).square().mean(), (x,), torch.optim.SGD(model.parameters(), lr=0.1), evaluation=True
    )
    assert capture.inference is not None
    (found,) = ort.InferenceSession(capture.inference.SerializeToString()).run(None, {"x": x.numpy()})
    np.testing.assert_allclose(found, model(x).detach().numpy(), rtol=0, atol=1e-6)


class OfNeighbors(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        return torch.spmm(adjacency, self.layer(x))


def test_models_that_take_sparse_matrices() -> None:
    """One of the caller is a constant; with one that the loss makes there is no graph."""
    torch.manual_seed(0)
    model, x = OfNeighbors(), torch.randn(5, 4)
    fixed = (torch.rand(5, 5) > 0.5).float().to_sparse()
    captured = gradients(model, lambda model, x: model(x, fixed).square().sum(), (x,), inference=True)
    assert captured.inference is not None
    (found,) = ort.InferenceSession(captured.inference.SerializeToString()).run(None, {"x": x.numpy()})
    close(found, model(x, fixed).detach())

    def loss(model: nn.Module, x: Tensor, places: Tensor, values: Tensor) -> Tensor:
        return model(x, torch.sparse_coo_tensor(places, values, (5, 5))).square().sum()

    assert gradients(model, loss, (x, torch.randint(5, (2, 7)), torch.rand(7)), inference=True).inference is None
