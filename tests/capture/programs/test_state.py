"""Tensors that a step changes are state of its graph, and no state is a constant of the graph."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients, training_step
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import CheckpointFunction, checkpoint

import onnx_ops
from onnx_ops.torch import CaptureError

# --- state ------------------------------------------------------------------------------------------------------------


class Averaged(nn.Module):
    """A trained layer, and frozen copies of it that follow it, each in another way."""

    def __init__(self) -> None:
        super().__init__()
        self.online = nn.Linear(4, 3)
        self.targets = nn.ModuleList([copy.deepcopy(self.online).requires_grad_(False) for _ in range(5)])

    def follow(self) -> None:
        for parameter, *others in zip(
            self.online.parameters(), *(target.parameters() for target in self.targets), strict=True
        ):
            others[0].lerp_(parameter, 0.5)
            others[1].data.mul_(0.5).add_(parameter.data, alpha=0.5)
            others[2].data = others[2].data * 0.5 + parameter.data * 0.5
            others[3].copy_(parameter)
        own, reached = list(self.targets[4].parameters()), list(self.online.parameters())
        torch._foreach_mul_(own, 0.5)
        torch._foreach_add_(own, reached, alpha=0.5)


def momentum(model: Averaged, x: Tensor) -> Tensor:
    with torch.no_grad():
        model.follow()
    wanted = sum(target(x) for target in model.targets)
    norms = torch._foreach_norm(list(model.online.parameters()))
    return functional.mse_loss(model.online(x), wanted / 4 + 1) + 0.1 * torch.stack(norms).sum()


def clipped(model: Averaged, x: Tensor) -> Tensor:
    """Changes parameters that the optimizer updates afterwards."""
    with torch.no_grad():
        for parameter in model.online.parameters():
            parameter.clamp_(-0.2, 0.2)
    return momentum(model, x)


@pytest.mark.parametrize("shapes", [None, ({0: torch.export.Dim("N")},)], ids=["static", "dynamic"])
@pytest.mark.parametrize("loss", [momentum, clipped])
def test_parameters_that_the_loss_changes_are_state(loss: Any, shapes: Any) -> None:
    torch.manual_seed(0)
    model = Averaged()
    nn.init.normal_(model.online.weight)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.online.parameters(), 0.5, momentum=0.9)
    batches = torch.randn(4, 8, 4)
    capture = training_step(model, loss, (batches[0],), optimizer, dynamic_shapes=shapes)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())

    trainer = onnx_ops.Trainer(capture)
    for batch in batches:
        wanted = loss(model, batch)
        optimizer.zero_grad()
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=batch.numpy())["loss"], wanted.detach(), rtol=1e-5)
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(trainer.weights()[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


class ForcedNorm(nn.Linear):
    """Normalizes its weights in place, as magnitude-preserving layers do (Karras et al. 2024)."""

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.weight.copy_(functional.normalize(self.weight, dim=1) * self.in_features**0.5)
        return functional.linear(x, functional.normalize(self.weight, dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_updates_of_parameters_that_the_loss_writes_begin_with_what_it_writes(dtype: torch.dtype) -> None:
    """Which is rounded otherwise than in PyTorch: where an update changes less, it is compared without this."""
    torch.manual_seed(0)
    layer = ForcedNorm(300, 300, dtype=dtype)
    x = torch.randn(5, 300, dtype=dtype)

    def loss(layer: nn.Module, x: Tensor) -> Tensor:
        return (x + 1e-4 * layer(x)).square().mean()

    capture = training_step(layer, loss, (x,), torch.optim.SGD(layer.parameters(), lr=1e-2), inference=False)
    trainer = onnx_ops.Trainer(capture)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1e-2)
    for _ in range(3):
        wanted = loss(layer, x)
        wanted.backward()
        optimizer.step()
        optimizer.zero_grad()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted.item(), rtol=1e-5)
    np.testing.assert_allclose(trainer.weights()["weight"], layer.weight.detach().numpy(), atol=1e-5)


class Codebook(nn.Module):
    """Codes that are averages of the rows nearest to them, a new parameter in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codes = nn.Linear(4, 3), nn.Embedding(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.encoder(x)
        nearest = functional.one_hot(torch.cdist(rows, self.codes.weight).argmin(1), 5).to(x.dtype)
        self.codes.weight = nn.Parameter(0.9 * self.codes.weight + 0.1 * nearest.T @ rows)
        return functional.mse_loss(rows, (nearest @ self.codes.weight).detach()) + rows.square().mean()


def test_parameters_without_a_gradient_may_be_replaced() -> None:
    """PyTorch's optimizer, which has the first one, skips it: averages of a VQ-VAE are kept so."""
    torch.manual_seed(0)
    model, batches = Codebook(), torch.randn(4, 8, 4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    capture = training_step(model, lambda model, x: model(x), (batches[0],), optimizer, clip_grad_norm=0.5)
    trainer = onnx_ops.Trainer(capture)
    for batch in batches:
        loss = model(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=batch.numpy())["loss"], loss.detach(), rtol=1e-5)
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(trainer.weights()[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


def test_parameters_with_a_gradient_are_not_replaced() -> None:
    model = Codebook()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(model: Codebook, x: Tensor) -> Tensor:
        return model.codes.weight.square().sum() + model(x)

    with pytest.raises(CaptureError, match=r"another object in the place of the parameter 'codes\.weight'"):
        training_step(model, loss, (torch.randn(8, 4),), optimizer)


class Statistics(nn.Module):
    """Two buffers that are one tensor, until a call replaces one of them."""

    def __init__(self, replaced: str, *, persistent: bool) -> None:
        super().__init__()
        self.layer, self.replaced = nn.Linear(4, 3), replaced
        start = torch.ones(3)
        for name in ("mean", "other"):
            self.register_buffer(name, start, persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x)
        setattr(self, self.replaced, 0.5 * getattr(self, self.replaced) + rows.detach().mean(0))
        return (rows * self.mean + self.other).square().mean()


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("replaced", ["mean", "other"])
def test_tied_buffers_of_which_one_is_replaced_are_refused(replaced: str, persistent: bool) -> None:
    """After the first step of PyTorch there are two."""
    with pytest.raises(CaptureError, match="in the place of 'other' or of 'mean', which are one tensor"):
        gradients(Statistics(replaced, persistent=persistent), lambda m, x: m(x), (torch.randn(5, 4),))


class Following(nn.Module):
    """A buffer that is another one from the end of a call on, which the call changes in place or replaces."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 3), how
        self.register_buffer("mean", torch.ones(3))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x)
        if self.how == "in place":
            self.mean.mul_(0.5).add_(rows.detach().mean(0))
        else:
            self.mean = 0.5 * self.mean + rows.detach().mean(0)
        result = (rows * self.last + self.mean).square().mean()
        self.last = self.mean.view(3) if self.how == "a view" else self.mean
        return result


@pytest.mark.parametrize("how", ["replaced", "a view"])
def test_a_buffer_that_is_put_in_the_place_of_another_one(how: str) -> None:
    torch.manual_seed(0)
    model, batches = Following(how), torch.randn(3, 5, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    trainer = onnx_ops.Trainer(training_step(model, lambda model, x: model(x), (batches[0],), optimizer))
    for x in batches:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], loss.detach(), rtol=1e-5)
    np.testing.assert_allclose(trainer.weights()["last"], model.last, rtol=1e-5)


def test_a_buffer_that_changes_in_place_in_the_place_of_another_one_is_refused() -> None:
    """In PyTorch the other one changes with it, from the second step on."""
    with pytest.raises(CaptureError, match="'mean', which each step changes, and 'last' of the model are in the same"):
        gradients(Following("in place"), lambda m, x: m(x), (torch.randn(5, 4),))


def test_embeddings_that_scale_their_rows() -> None:
    """Those that are looked up and are longer than max_norm, in place, before the optimizer changes them."""
    torch.manual_seed(0)
    model = nn.ModuleList([nn.Embedding(20, 3, max_norm=1.0), nn.EmbeddingBag(20, 3, max_norm=0.5, norm_type=1.0)])
    optimizer = torch.optim.Adam(model.parameters(), 0.1)
    batches = torch.randint(20, (3, 4, 5))

    def loss(model: Any, ids: Tensor) -> Tensor:
        return (model[0](ids).sum(1) + model[0](ids[:, 1:]).mean(1) + model[1](ids)).sin().mean()

    trainer = onnx_ops.Trainer(training_step(model, loss, (batches[0],), optimizer))
    for ids in batches:
        optimizer.zero_grad()
        wanted = loss(model, ids)
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(ids=ids.numpy())["loss"], wanted.detach(), rtol=1e-5)
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(trainer.weights()[name], tensor, rtol=1e-5, atol=1e-6, err_msg=name)


class Viewing(nn.Module):
    """A layer with another tensor in the memory of one of its own."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how = nn.Linear(4, 4), how
        weight = self.layer.weight.detach()
        self.register_buffer("sums", torch.zeros(4))
        if how == "other weights":
            self.other = nn.Parameter(weight.T)
        elif how == "initial weights":
            self.register_buffer("other", weight[:1])
        elif how == "first sums":
            self.register_buffer("other", self.sums[:2].view(1, 2))
        elif how == "columns":
            whole = torch.rand(4, 8)
            self.layer.weight, self.other = nn.Parameter(whole[:, ::2]), nn.Parameter(whole[:, 1::2])
        elif how == "once":
            self.other = nn.Parameter(weight, requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        self.sums += x.detach().sum(0)
        if self.how == "once":
            self.other.data = 0.5 * self.other.data + 0.5 * self.layer.weight.data
        return self.layer(x).tanh() * self.sums.mean() + self.other.square().sum() * x


@pytest.mark.parametrize(
    ("how", "names"),
    [
        ("other weights", "'layer.weight', which each step changes, and 'other'"),
        ("initial weights", "'layer.weight', which each step changes, and 'other'"),
        ("first sums", "'sums', which each step changes, and 'other'"),
    ],
)
def test_state_in_the_memory_of_other_state_is_refused(how: str, names: str) -> None:
    model = Viewing(how)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(CaptureError, match=f"{names} of the model are in the same memory"):
        training_step(model, lambda model, x: model(x).mean(), (torch.randn(5, 4),), optimizer)


@pytest.mark.parametrize("how", ["columns", "once"])
def test_state_beside_other_state_in_memory(how: str) -> None:
    """Elements that alternate, and a copy that the loss makes before the step changes the original."""
    torch.manual_seed(0)
    model, batches = Viewing(how), torch.randn(3, 5, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    step = training_step(model, lambda model, x: model(x).mean(), (batches[0],), optimizer, inference=False)
    trainer = onnx_ops.Trainer(step)
    for x in batches:
        optimizer.zero_grad()
        wanted = model(x).mean()
        wanted.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], wanted.detach(), rtol=1e-4)


class Remembering(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.how = how
        self.memory = torch.zeros(4)
        self.history = [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        average = y.detach().mean(0)
        if self.how == "in place":
            self.memory.lerp_(average, 0.1)
        elif self.how == "replaced":
            self.memory = self.memory * 0.9 + average
        elif self.how == "in a list":
            self.history[0] = self.history[0] * 0.9 + average
            return y - self.history[0]
        elif self.how == "kept for others to look at":
            self.memory = average
            return y
        elif self.how == "computed once":
            if not hasattr(self, "table"):
                self.table = torch.linspace(1, 2, 4)
            return y - self.table
        return y - self.memory


@pytest.mark.parametrize(("how", "name"), [("in place", "memory"), ("replaced", "memory"), ("in a list", "history")])
def test_tensors_that_are_not_registered_cannot_be_state(how: str, name: str) -> None:
    with pytest.raises(CaptureError, match=f"the tensor '{name}' .* neither a parameter nor a buffer.*register_buffer"):
        gradients(Remembering(how), lambda m, x: m(x).square().mean(), (torch.randn(5, 4),), check=False)


class Relative(nn.Module):
    """Losses relative to those of the first step, as GradNorm has them."""

    def __init__(self, *, registered: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        if registered:
            self.register_buffer("start", None)
        else:
            self.start = None

    def forward(self, x: Tensor) -> Tensor:
        losses = self.layer(x).square().mean(0)
        if self.start is None:
            self.start = losses.detach()
        return (losses / self.start).sum()


@pytest.mark.parametrize("registered", [True, False])
def test_tensors_of_the_first_step_cannot_be_state(registered: bool) -> None:
    torch.manual_seed(0)
    model, x = Relative(registered=registered), torch.randn(5, 4)
    with pytest.raises(CaptureError, match=r"the first step keeps the tensor '.*', which it computes from parameters"):
        gradients(model, lambda m, x: m(x), (x,))
    model(x)
    trainer = onnx_ops.Trainer(training_step(model, lambda m, x: m(x), (x,), torch.optim.SGD(model.parameters(), 0.1)))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], loss.detach(), rtol=1e-5)


class Table(nn.Module):
    """A table of a buffer that no step changes, computed once, as rotary embeddings have it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.table = nn.Linear(4, 3), None
        self.register_buffer("frequencies", torch.tensor([1.0, 0.1, 0.01]))

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(5.0)[:, None].mul(self.frequencies).cos()
        return (self.layer(x) * self.table).square().mean()


def test_tables_of_constant_buffers_may_be_kept() -> None:
    gradients(Table(), lambda m, x: m(x), (torch.randn(5, 4),))


@pytest.mark.parametrize(
    ("value", "said"), [(None, "removes the buffer 'sums'"), (torch.zeros(4).double(), "changes the dtype of 'sums'")]
)
def test_buffers_that_are_removed_or_converted_are_refused(value: Any, said: str) -> None:
    def loss(model: Any, x: Tensor) -> Tensor:
        result = model(x).mean()
        model.sums = value
        return result

    with pytest.raises(CaptureError, match=said):
        gradients(Viewing("columns"), loss, (torch.randn(5, 4),))


def relative(value: Tensor, history: Any) -> Tensor:
    """A loss divided by the mean of the last two, which are equal where the batch is."""
    kept = history.setdefault("losses", []) if isinstance(history, dict) else history
    kept.append(value.detach())
    last = list(kept)[-2:]
    return value * len(last) / sum(last)


@pytest.mark.parametrize("history", [[], {}, collections.deque([torch.ones(()), torch.ones(())], maxlen=2)])
@pytest.mark.parametrize("of_model", [True, False])
def test_histories_cannot_be_state(history: Any, of_model: bool) -> None:
    model = nn.Linear(4, 4)
    history = copy.copy(history)
    if of_model:
        model.history = history

    def loss(model: Any, x: Tensor) -> Tensor:
        return relative(model(x).square().mean(), model.history if of_model else history)

    with pytest.raises(CaptureError, match=r"each step adds to 'history', .* register it by register_buffer"):
        gradients(model, loss, (torch.randn(5, 4),), check=False)


def test_variables_of_the_loss_cannot_be_state() -> None:
    average = {"loss": torch.zeros(())}

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        value = model(x).square().mean()
        average["loss"] = average["loss"] * 0.9 + value.detach()
        return value / (1 + average["loss"])

    with pytest.raises(CaptureError, match="the tensor 'average' that the step before has changed"):
        gradients(nn.Linear(4, 4), loss, (torch.randn(5, 4),))


def test_modules_beside_the_model_cannot_have_state() -> None:
    """As the centre that the loss of DINO has; the error names it."""
    criterion = nn.BatchNorm1d(4)
    with pytest.raises(CaptureError, match=r"the tensor 'criterion\.\w+' .* make the module that has it an attribute"):
        gradients(nn.Linear(4, 4), lambda model, x: criterion(model(x)).square().mean(), (torch.randn(5, 4),))


def test_a_parameter_that_gets_its_own_data_is_not_changed() -> None:
    """As libraries do with `parameter.data = parameter.data.to(dtype)`."""

    def loss(model: nn.Linear, x: Tensor) -> Tensor:
        model.weight.data = model.weight.data.to(x.dtype)
        return model(x).square().mean()

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    capture = onnx_ops.torch.training_step(model, loss, (torch.randn(5, 4),), torch.optim.SGD(model.parameters(), 0.1))
    x = torch.randn(5, 4)
    (wanted,) = torch.autograd.grad(loss(model, x), [model.weight])
    trainer = onnx_ops.Trainer(capture)
    trainer.step(x=x.numpy())
    np.testing.assert_allclose(trainer.weights()["weight"], (model.weight - 0.1 * wanted).detach(), rtol=1e-5)


@pytest.mark.parametrize("how", ["kept for others to look at", "computed once"])
def test_tensors_that_are_no_state_may_be_kept(how: str) -> None:
    model = Remembering(how)
    capture = gradients(model, lambda m, x: m(x).square().mean(), (torch.randn(5, 4),))
    assert set(capture.state) == {"layer.weight", "layer.bias"}


# --- constants --------------------------------------------------------------------------------------------------------


class Recomputed(nn.Module):
    """Layers whose activations the backward pass recomputes, some of them twice."""

    def __init__(self, again: Callable[..., Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 1)
        self.again = again

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.again(lambda h: self.again(self.inner, self.first(h).tanh()).tanh(), x))

    def inner(self, x: Tensor) -> Tensor:
        return self.second(x).tanh()


AGAIN: dict[str, Callable[..., Tensor]] = {
    "not reentrant": partial(checkpoint, use_reentrant=False),
    "reentrant": partial(checkpoint, use_reentrant=True),
    "autograd function": lambda function, x: CheckpointFunction.apply(function, True, x),
}


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad:UserWarning")
@pytest.mark.parametrize("again", AGAIN)
@pytest.mark.parametrize("differentiable", [False, True])
def test_recomputations_read_the_parameters_of_each_step(again: str, differentiable: bool) -> None:
    """Without a gradient of its arguments a reentrant recomputation has none of the parameters."""
    torch.manual_seed(0)
    model, x = Recomputed(AGAIN[again]), torch.randn(5, 4, requires_grad=differentiable)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    capture = gradients(model, loss, (x,))
    session = onnx_ops.InferenceSession(capture.model)
    state = {name: 2 * array for name, array in capture.state.items()}
    names = [value.name for value in session.get_outputs()]
    got = dict(zip(names, session.run(names, {**state, "x": x.detach().numpy()}), strict=True))
    model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
    loss(model, x).backward()
    for name, parameter in model.named_parameters():
        wanted = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        np.testing.assert_allclose(got[f"grad.{name}"], wanted, rtol=1e-4, atol=1e-6, err_msg=name)


def test_a_kept_reference_to_the_function_of_recomputations_is_refused() -> None:
    x, apply = torch.randn(5, 4, requires_grad=True), CheckpointFunction.apply
    with pytest.raises(CaptureError, match=r"call torch\.utils\.checkpoint\.checkpoint"):
        gradients(nn.Linear(4, 1), lambda m, x: apply(m, True, x).mean(), (x,))


def test_buffers_in_distributions_are_state() -> None:
    """As those of priors in GPyTorch, whose base distribution has them too."""

    class Prior(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 2)
            self.register_buffer("spread", torch.tensor(0.5))
            self.prior = torch.distributions.LogNormal(torch.tensor(0.0), self.spread, validate_args=False)

        def forward(self, x: Tensor) -> Tensor:
            result: Tensor = super().forward(x).square().mean() - self.prior.log_prob(self.weight.exp()).sum()
            return result

    model, x = Prior(), torch.randn(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spread = model.prior.base_dist.scale
    trainer = onnx_ops.Trainer(training_step(model, lambda model, x: model(x), (x,), optimizer))
    assert model.prior.base_dist.scale is spread
    for value in (0.5, 2.0):
        model.spread.fill_(value)
        state = trainer.state_dict() | {"spread": np.array(value, np.float32)}
        trainer.load_state_dict(state)
        with torch.no_grad():
            model.weight.copy_(torch.from_numpy(state["weight"]))
            model.bias.copy_(torch.from_numpy(state["bias"]))
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], model(x).item(), rtol=1e-5)


class Listed(nn.Module):
    """Reads a view of a tensor that it has registered from a list."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("scale", torch.ones(4))
        self.list = [self.layer.weight[1:]] if kind == "parameter" else [self.scale[:3]]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).mean() + (x * self.list[0].detach().sum(0)).mean()


@pytest.mark.parametrize(("kind", "name"), [("parameter", "layer.weight"), ("buffer", "scale")])
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_state_is_no_constant(kind: str, name: str) -> None:
    with pytest.raises(CaptureError, match=f"reads the {kind} '{name}' by a reference from outside"):
        gradients(Listed(kind), lambda m, x: m(x), (torch.randn(5, 4),), check=False)


class Anchored(nn.Linear):
    """Has boxes that are not trained, as detectors do."""

    def __init__(self) -> None:
        super().__init__(4, 4)
        self.register_buffer("anchors", torch.ones(4))


class OfAnchors:
    """A loss that keeps what it reads of the model, as that of YOLO does."""

    def __init__(self, model: Anchored) -> None:
        self.anchors, self.kept = model.anchors, [model.weight, {"bias": model.bias}]

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        penalty = self.kept[0].square().sum() + self.kept[1]["bias"].square().sum()
        return (model(x) - self.anchors).square().mean() + penalty


@pytest.mark.parametrize("how", ["the loss", "a variable", "a method"])
def test_attributes_of_the_loss_are_state_where_those_of_the_model_are(how: str) -> None:
    torch.manual_seed(0)
    model, x = Anchored(), torch.randn(3, 4)
    of_anchors = OfAnchors(model)
    losses = {"the loss": of_anchors, "a variable": lambda m, x: of_anchors(m, x), "a method": of_anchors.__call__}
    capture = training_step(model, losses[how], (x,), torch.optim.SGD(model.parameters(), lr=0.1))
    assert of_anchors.anchors is model.anchors
    trainer = onnx_ops.Trainer(capture)
    model.anchors.fill_(3.0)
    trainer.load_state_dict(trainer.state_dict() | {"anchors": model.anchors.numpy()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        loss = of_anchors(model, x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], loss.item(), rtol=1e-5)


class Branches(nn.Module):
    """Its parameters are in containers too, as those of pykan; the step changes one buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4))
        self.register_buffer("mean", torch.zeros(4))
        self.parts = {"scales": [self.first, self.second], "means": (self.mean,)}

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.parts["means"][0].mul_(0.5).add_(x.detach().mean(0))
        for scale in self.parts["scales"]:
            x = (x * scale).tanh()
        return (x - self.parts["means"][0]).square().sum()


def test_steps_of_parameters_in_containers() -> None:
    torch.manual_seed(0)
    model, batches = Branches(), torch.randn(4, 5, 4)
    containers = model.parts, model.parts["scales"][0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = onnx_ops.Trainer(training_step(model, lambda m, x: m(x), (batches[0],), optimizer, evaluation=True))
    assert (model.parts, model.parts["scales"][0]) == containers
    model.train()
    for x in batches[1:]:
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], loss.detach(), rtol=1e-5)
    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(trainer.weights()[name], tensor, rtol=1e-5, err_msg=name)
    evaluated = trainer.evaluate(x=batches[0].numpy())["loss"]
    np.testing.assert_allclose(evaluated, model.eval()(batches[0]).detach(), rtol=1e-5)


class Swapped(nn.Module):
    """Its parameters have names with dots, as in TensorDictParams of tensordict, and are in another module in a call.

    `frozen` has the first parameter detached, as the caches of torchrl have.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self._parameters.update({f"layer.{name}": parameter for name, parameter in layer.named_parameters()})
        self.__dict__["layer"] = nn.Linear(4, 2, device="meta")
        self.frozen = {"weight": layer.weight.detach()}

    def forward(self, x: Tensor) -> Tensor:
        own = dict(self.layer._parameters)
        self.layer._parameters.update({name.removeprefix("layer."): p for name, p in self._parameters.items()})
        result = self.layer(x) + x @ self.frozen["weight"].T
        self.layer._parameters.update(own)
        return result


def test_parameters_that_a_call_puts_into_another_module() -> None:
    torch.manual_seed(0)
    model, x = Swapped(nn.Linear(4, 2)), torch.randn(3, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trainer = onnx_ops.Trainer(
        training_step(model, lambda model, x: model(x).square().mean(), (x,), optimizer, inference=False)
    )
    for _ in range(2):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], loss.detach(), rtol=1e-5)


def test_numbers_of_parameters_are_no_constants() -> None:
    """The check is at other values of the parameters too."""
    model = nn.Linear(4, 4)
    weight = model.weight.detach().numpy()

    def loss(m: nn.Module, x: Tensor) -> Tensor:
        return (m(x) * torch.tensor(weight.sum(0))).mean()

    with pytest.raises(CaptureError, match="not those of PyTorch: loss is off"):
        gradients(model, loss, (torch.randn(5, 4),))


class Marked(torch.nn.Linear):
    def __init__(self) -> None:
        super().__init__(3, 3)
        self.register_buffer("marks", torch.eye(3).to_sparse())
        self.register_buffer("own", torch.eye(3).to_sparse(), persistent=False)


def test_sparse_buffers_that_the_step_does_not_use() -> None:
    """As openai-whisper's alignment_heads."""
    capture = gradients(Marked(), lambda model, x: model(x).square().sum(), (torch.ones(2, 3),), inference=True)
    assert set(capture.state) == {"weight", "bias"}


def test_products_with_sparse_constants() -> None:
    """The adjacency of a graph, a buffer or a tensor outside the model; the check compares with PyTorch."""
    edges = torch.tensor([[0, 4, 1, 4], [2, 0, 2, 1]])
    weights = torch.sparse_coo_tensor(edges, torch.tensor([1.0, 0.5, 2.0, 3.0]), (5, 3), check_invariants=True)

    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        hidden = model(torch.sparse.mm(model.marks, x))
        return (weights @ hidden).square().sum() + torch.mv(weights, hidden[:, 0]).exp().sum()

    gradients(Marked(), loss, (torch.randn(3, 3),))


def test_sparse_arguments_are_refused() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.sparse.mm(x, model.weight).sum()

    with pytest.raises(CaptureError, match=r"argument 'x' is sparse: pass its indices and values"):
        gradients(Marked(), loss, (torch.eye(3).to_sparse(),))


def test_sparse_buffers_that_the_step_changes_are_refused() -> None:
    def loss(model: Any, x: torch.Tensor) -> torch.Tensor:
        model.marks = (2 * torch.eye(3)).to_sparse()
        return model(x).square().sum()

    with pytest.raises(CaptureError, match="changes the buffer 'marks', which is sparse"):
        gradients(Marked(), loss, (torch.ones(2, 3),))
