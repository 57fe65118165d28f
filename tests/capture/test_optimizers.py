"""Training steps compared with PyTorch: the optimizer's update, many steps, and state copied both ways."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from captures import training_step
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops.torch import CaptureError, MasterWeights, load_into_torch, register_optimizer, state_from_torch
from onnx_ops.torch.base.arrays import to_array
from onnx_ops.torch.optimizers.arithmetic import SharedScalars

BATCH = {0: Dim("N")}

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, 0.1),
    "SGD momentum": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9),
    "SGD nesterov": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD dampening": lambda p: torch.optim.SGD(p, 0.05, momentum=0.9, dampening=0.3, maximize=True),
    "Adam": lambda p: torch.optim.Adam(p, 1e-2, eps=EPS),
    "Adam decay": lambda p: torch.optim.Adam(p, 1e-2, betas=(0.8, 0.95), weight_decay=0.1, eps=EPS),
    "Adam decoupled": lambda p: torch.optim.Adam(p, 1e-2, weight_decay=0.1, decoupled_weight_decay=True, eps=EPS),
    "Adam amsgrad": lambda p: torch.optim.Adam(p, 1e-2, amsgrad=True, eps=EPS),
    "Adam capturable": lambda p: torch.optim.Adam(p, RATE, eps=EPS, capturable=True),
    "AdamW": lambda p: torch.optim.AdamW(p, 1e-2, eps=EPS, fused=True),
    "AdamW amsgrad": lambda p: torch.optim.AdamW(p, 1e-2, amsgrad=True, weight_decay=0.2, maximize=True, eps=EPS),
    "Adamax": lambda p: torch.optim.Adamax(p, 1e-2, eps=EPS),
    "Adamax decay": lambda p: torch.optim.Adamax(p, betas=(0.8, 0.9), weight_decay=0.1, maximize=True, eps=EPS),
    "NAdam": lambda p: torch.optim.NAdam(p, 1e-2, eps=EPS),
    "NAdam decay": lambda p: torch.optim.NAdam(p, weight_decay=0.1, momentum_decay=0.1, maximize=True, eps=EPS),
    "NAdam decoupled": lambda p: torch.optim.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True, eps=EPS),
    "RAdam": lambda p: torch.optim.RAdam(p, 1e-2, eps=EPS),
    "RAdam decay": lambda p: torch.optim.RAdam(p, 1e-2, betas=(0.8, 0.9), weight_decay=0.1, maximize=True, eps=EPS),
    "RAdam decoupled": lambda p: torch.optim.RAdam(p, weight_decay=0.1, decoupled_weight_decay=True, eps=EPS),
    "RMSprop": lambda p: torch.optim.RMSprop(p, 1e-2, eps=EPS),
    "RMSprop momentum": lambda p: torch.optim.RMSprop(p, alpha=0.9, momentum=0.8, weight_decay=0.1, eps=EPS),
    "RMSprop centered": lambda p: torch.optim.RMSprop(p, 1e-3, centered=True, momentum=0.5, maximize=True, eps=0.1),
    "Adagrad": lambda p: torch.optim.Adagrad(p, 1e-2, eps=EPS, foreach=True),
    "Adagrad decay": lambda p: torch.optim.Adagrad(p, 0.1, 0.1, 0.01, 0.2, maximize=True, eps=EPS),
    "Adadelta": lambda p: torch.optim.Adadelta(p, eps=EPS),
    "Adadelta decay": lambda p: torch.optim.Adadelta(p, 0.5, rho=0.8, eps=EPS, weight_decay=0.1, maximize=True),
    "ASGD": lambda p: torch.optim.ASGD(p, 0.1),
    "ASGD averaging": lambda p: torch.optim.ASGD(p, 0.1, lambd=0.1, alpha=0.6, t0=3, weight_decay=0.1, maximize=True),
    "Rprop": lambda p: torch.optim.Rprop(p),
    "Rprop etas": lambda p: torch.optim.Rprop(p, 1e-2, etas=(0.3, 1.5), step_sizes=(1e-3, 0.03), maximize=True),
    "Adafactor": lambda p: torch.optim.Adafactor(p),
    "Adafactor decay": lambda p: torch.optim.Adafactor(p, 0.5, -0.5, (1e-3, 1e-2), 1.5, 0.1, maximize=True),
    "Muon": lambda p: torch.optim.Muon(_matrices(p)),
    "Muon wide": lambda p: torch.optim.Muon(
        _matrices(p), 0.02, momentum=0.8, ns_steps=3, adjust_lr_fn="match_rms_adamw"
    ),
    "Muon plain": lambda p: _plain_muon(_matrices(p)),
    "groups": lambda p: _groups(list(p)),
}
RATE = torch.tensor(1e-2, dtype=torch.float64)
EPS = 1e-3
"""Not so small that float16 rounds it to 0, with which PyTorch divides 0 by 0."""


def _groups(parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    first = {"params": parameters[:1], "lr": 0.02, "weight_decay": 0.0}
    return torch.optim.AdamW([first, {"params": parameters[1:], "betas": (0.7, 0.9)}], lr=0.005, eps=EPS)


def _plain_muon(matrices: list[nn.Parameter]) -> torch.optim.Optimizer:
    nesterov = matrices[0].dtype is torch.bfloat16
    return torch.optim.Muon(matrices, nesterov=nesterov, ns_coefficients=(3.0, -3.2, 1.2), eps=0.1)


def _matrices(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [parameter for parameter in parameters if parameter.dim() == 2]


def network(dtype: torch.dtype) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3)).to(dtype)


def batches(dtype: torch.dtype, steps: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(1)
    return [(torch.randn(8, 6).to(dtype), torch.rand(8, 3).softmax(1).to(dtype)) for _ in range(steps)]


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(model(x).log_softmax(1), y, reduction="batchmean")


def step_of_all(model: nn.Module, optimizers: Iterable[torch.optim.Optimizer], batch: tuple[Tensor, Tensor]) -> None:
    model.zero_grad()
    loss_of_all(model, *batch).backward()
    for optimizer in optimizers:
        on_cpu = [
            {**group, "capturable": False} if "capturable" in group else group for group in optimizer.param_groups
        ]
        optimizer.param_groups, groups = on_cpu, optimizer.param_groups
        optimizer.step()
        optimizer.param_groups = groups


def stepped(model: nn.Module, optimizer: torch.optim.Optimizer, batch: tuple[Tensor, Tensor]) -> float:
    optimizer.zero_grad()
    value = loss(model, *batch)
    value.backward()
    optimizer.step()
    return value.item()


def check_weights(trainer: onnx_ops.Trainer, model: nn.Module, tolerance: float) -> None:
    got = trainer.weights()
    for name, wanted in model.state_dict().items():
        largest = float(wanted.abs().max())
        np.testing.assert_allclose(got[name], wanted.numpy(), rtol=0, atol=tolerance * largest, err_msg=name)


# Muon computes in bfloat16, and its iterations enlarge rounding errors; its steps are up to 0.1 times the weights.
MUON = 5e-3
TOLERANCES = {
    # Differences after the steps between sums in two orders, relative to a tensor's largest entry.
    torch.float32: 1e-5,
    torch.float64: 1e-11,
    # Each step rounds to 8 or 11 bits. Results that fall on the other side of a midpoint are one unit apart.
    torch.bfloat16: 6 * 2.0**-8,
    torch.float16: 6 * 2.0**-11,
}


class Networks(nn.ModuleDict):
    """A layer for each optimizer, so that one capture is that of all of them. Some parameters have no gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        torch.manual_seed(0)
        biased = ("SGD dampening", "Adafactor decay", "groups")
        super().__init__({kind: nn.Linear(6, 3, bias=kind in biased, dtype=dtype) for kind in OPTIMIZERS})
        for kind in biased:
            self[kind].unused = nn.Parameter(torch.ones(2, 2, dtype=dtype))

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x) for layer in self.values()]


def loss_of_all(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return torch.stack([(output - y).square().sum(1).mean() for output in model(x)]).sum()


@pytest.mark.parametrize("dtype", names_with(full=list(TOLERANCES)[1:], names=TOLERANCES), ids=str)
def test_every_optimizer_and_option(dtype: torch.dtype) -> None:
    """Resumed after two steps in PyTorch."""
    model = Networks(dtype)
    optimizers = [make(model[kind].parameters()) for kind, make in OPTIMIZERS.items()]
    data = batches(dtype, 14)
    for batch in data[:2]:
        step_of_all(model, optimizers, batch)
    exact = copy.deepcopy(model).double()
    exacts = [make(exact[kind].parameters()) for kind, make in OPTIMIZERS.items()]
    for optimizer, wide in zip(optimizers, exacts, strict=True):
        wide.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    capture = training_step(model, loss_of_all, data[0], optimizers, dynamic_shapes=(BATCH, BATCH))
    trainer = onnx_ops.Trainer(capture)
    for batch in data[2:]:
        trainer.step(x=to_array(batch[0]), y=to_array(batch[1]))
        step_of_all(model, optimizers, batch)
        step_of_all(exact, exacts, (batch[0].double(), batch[1].double()))
    got = trainer.weights()
    wrong = []
    for name, wanted in model.state_dict().items():
        close = exact.state_dict()[name]
        largest = float(close.abs().max())
        tolerance = TOLERANCES[dtype] if "Muon" not in name else max(TOLERANCES[dtype], MUON)
        own, others = got[name].astype(np.float64), to_array(wanted).astype(np.float64)
        off = np.abs(own - others).max() / largest
        error = np.abs(own - close.numpy()).max() / largest
        theirs = np.abs(others - close.numpy()).max() / largest
        if not (off <= tolerance + theirs and error <= tolerance + theirs):
            wrong.append(f"{name}: {off:.2g} off PyTorch, {error:.2g} off float64, where PyTorch is {theirs:.2g} off")
    assert not wrong, "\n".join(wrong)
    check_states(trainer, model, optimizers)


def check_states(trainer: onnx_ops.Trainer, model: nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
    """The state in PyTorch has the keys, shapes, dtypes and counts of PyTorch's own, and comes back unchanged."""
    twin = Networks(next(model.parameters()).dtype)
    twins = [make(twin[kind].parameters()) for kind, make in OPTIMIZERS.items()]
    load_into_torch(trainer.state_dict(), twin, twins)
    wanted = dict(model.named_parameters())
    for optimizer, other in zip(optimizers, twins, strict=True):
        for name, parameter in twin.named_parameters():
            loaded, own = other.state.get(parameter, {}), optimizer.state.get(wanted[name], {})
            assert loaded.keys() == own.keys(), name
            for key, value in own.items():
                assert (loaded[key].shape, loaded[key].dtype) == (value.shape, value.dtype), (name, key)
                if key == "step":
                    assert loaded[key] == value, name
    state = trainer.state_dict()
    empty = {key: np.zeros_like(array) for key, array in state.items()}
    for key, array in state_from_torch(empty, twin, twins).items():
        # Of SGD's steps, which PyTorch does not count, only whether there was one is known.
        known = np.minimum(state[key], 1) if "step.SGD" in key else state[key]
        np.testing.assert_array_equal(array, known, err_msg=key)


class Copied:
    """Parameters of 16 bits with float32 copies, which an optimizer of torch.optim updates."""

    def __init__(self, model: nn.Module, make: Make) -> None:
        self._parameters = list(model.parameters())
        self.copies = [nn.Parameter(parameter.detach().float()) for parameter in self._parameters]
        self.optimizer = make(self.copies)

    def step(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> None:
        model.zero_grad()
        loss(model, *batch).backward()
        for parameter, copied in zip(self._parameters, self.copies, strict=True):
            assert parameter.grad is not None
            copied.grad = parameter.grad.float()
        self.optimizer.step()
        with torch.no_grad():
            for parameter, copied in zip(self._parameters, self.copies, strict=True):
                parameter.copy_(copied)


@pytest.mark.parametrize("dtype", names_with(full=[torch.float16], names=[torch.bfloat16, torch.float16]), ids=str)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(torch.optim.SGD, {"momentum": 0.9, "nesterov": True}, marks=pytest.mark.full),
        (torch.optim.AdamW, {"amsgrad": True}),
    ],
)
def test_master_weights(dtype: torch.dtype, kind: type[torch.optim.Optimizer], options: dict[str, Any]) -> None:
    """Updates far below the precision of the parameters; resumed after some steps, and with other weights later."""
    make = functools.partial(kind, lr=1e-4, **options)
    model = network(dtype)
    twin, start = copy.deepcopy(model), copy.deepcopy(model)
    optimizer = MasterWeights(kind, model.parameters(), lr=1e-4, **options)
    data = batches(dtype, 50)
    expected = Copied(twin, make)
    for batch in data[:10]:
        stepped(model, optimizer, batch)
        expected.step(twin, batch)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer))
    for batch in data[10:]:
        trainer.step(x=to_array(batch[0]), y=to_array(batch[1]))
        expected.step(twin, batch)
    load_into_torch(trainer.state_dict(), model, optimizer)
    for (name, parameter), wanted, before in zip(
        model.named_parameters(), expected.copies, start.parameters(), strict=True
    ):
        reached = optimizer.state[parameter]["master_parameter"]
        moved = (wanted - before).abs().max()
        assert (reached - wanted).abs().max() <= 0.02 * moved, name
        assert torch.equal(reached.to(dtype), parameter), name
    weights = {name: to_array(tensor) for name, tensor in start.state_dict().items()}
    trainer.load_state_dict(weights, strict=False)
    trainer.step(x=to_array(data[0][0]), y=to_array(data[0][1]))
    for name, array in trainer.weights().items():
        off = np.abs(array.astype(np.float64) - weights[name].astype(np.float64))
        assert off.max() <= 0.01 * np.abs(weights[name].astype(np.float64)).max(), name


def test_gradients_are_clipped_as_torch_does() -> None:
    model = network(torch.float32)
    optimizer = torch.optim.SGD(model.parameters(), 1.0)
    data = batches(torch.float32, 20)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer, clip_grad_norm=0.1))
    norms = []
    for batch in data:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
        optimizer.zero_grad()
        loss(model, *batch).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)))
        optimizer.step()
    assert min(norms) < 0.1 < max(norms), "some are clipped, some are not"
    check_weights(trainer, model, 1e-5)


def test_an_unused_parameter_stays_without_state() -> None:
    model = nn.ModuleDict({"used": nn.Linear(6, 3), "unused": nn.Linear(2, 2)})
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.5)
    capture = training_step(model, lambda m, x, y: loss(m["used"], x, y), batches(torch.float32, 1)[0], optimizer)
    assert "unused.weight" in capture.state
    assert not [name for name in capture.state if name.startswith("optimizer.") and "unused" in name]
    assert "next.unused.weight" not in [value.name for value in capture.model.graph.output]


def test_a_step_starts_from_the_state_of_the_optimizer() -> None:
    model = network(torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    data = batches(torch.float32, 20)
    for batch in data[:10]:
        stepped(model, optimizer, batch)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer))
    for batch in data[10:]:
        stepped(model, optimizer, batch)
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
    check_weights(trainer, model, 1e-5)


@pytest.mark.parametrize("kind", names_with(full=["SGD dampening"], names=["SGD dampening", "Adam amsgrad", "groups"]))
def test_training_goes_from_torch_to_onnx_and_back(kind: str, tmp_path: Path) -> None:
    """Ten steps here, ten there, ten here again, as thirty in one place."""
    model = network(torch.float32)
    optimizer = OPTIMIZERS[kind](model.parameters())
    data = batches(torch.float32, 30)
    trainer = onnx_ops.Trainer(training_step(model, loss, data[0], optimizer))
    twin = copy.deepcopy(model)
    twin_optimizer = OPTIMIZERS[kind](twin.parameters())
    for batch in data[:10]:
        stepped(model, optimizer, batch)
    trainer.load_state_dict(state_from_torch(trainer.state_dict(), model, optimizer))
    for batch in data[10:20]:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
    load_into_torch(trainer.state_dict(), model, optimizer)
    for batch in data[20:]:
        stepped(model, optimizer, batch)
    for batch in data:
        stepped(twin, twin_optimizer, batch)
    for (name, got), wanted in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert float((got - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max()), name


def test_a_state_that_does_not_fit_changes_nothing() -> None:
    model = network(torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    capture = training_step(model, loss, batches(torch.float32, 1)[0], optimizer, check=False)
    before = copy.deepcopy(model.state_dict())
    changes: list[tuple[dict[str, np.ndarray | None], str]] = [
        ({"2.bias": np.zeros(7, np.float32)}, "'2.bias' has shape"),
        ({"optimizer.exp_avg.2.bias": np.zeros(7, np.float32)}, "'optimizer.exp_avg.2.bias' has shape"),
        ({"2.bias": None}, "lacks the parameter '2.bias'"),
        ({"learning_rate": None}, "lacks 'learning_rate'"),
    ]
    for change, said in changes:
        state = {name: np.asarray(array + 1) for name, array in capture.state.items()} | change
        state = {name: array for name, array in state.items() if array is not None}
        with pytest.raises(CaptureError, match=said):
            load_into_torch(state, model, optimizer)
        assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
        assert (optimizer.param_groups[0]["lr"], dict(optimizer.state)) == (0.5, {})
        if "learning_rate" not in state:
            with pytest.raises(CaptureError, match=said):
                state_from_torch(state, model, optimizer)


class Named(torch.optim.AdamW):
    """What libraries derive to set defaults."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, 1e-2, amsgrad=True)


class Halved(Named):
    def step(self, closure: Any = None) -> None:
        raise AssertionError


def test_muon_of_bfloat16_without_nesterov_is_refused() -> None:
    """PyTorch normalizes its momentum in place, as its bfloat16 copy is the momentum itself."""
    model = nn.Linear(4, 3, bias=False, dtype=torch.bfloat16)
    optimizer = torch.optim.Muon(model.parameters(), nesterov=False)
    with pytest.raises(CaptureError, match="expected nesterov=True or parameters of another dtype"):
        training_step(model, lambda m, x: m(x).square().mean(), (torch.ones(2, 4).bfloat16(),), optimizer)


def hooked(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_step_post_hook(lambda *arguments: None)
    return optimizer


class Muon(torch.optim.Optimizer):
    pass


def test_subclasses_that_override_nothing_are_their_base() -> None:
    model = network(torch.float32)
    capture = training_step(model, loss, batches(torch.float32, 1)[0], Named(model.parameters()))
    assert "optimizer.max_exp_avg_sq.0.weight" in capture.state


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda m: Halved(m.parameters()),
            f"is a {__name__}.Halved, which has its own step in place of those of AdamW",
        ),
        (
            lambda m: torch.optim.LBFGS(m.parameters()),
            "the optimizer is a torch.optim.lbfgs.LBFGS; what can be captured is, of torch.optim, ASGD, Adadelta, ",
        ),
        # Of another package, with the name of one of torch.optim.
        (lambda m: Muon(m.parameters(), {}), f"the optimizer is a {__name__}.Muon; what can be captured is, of"),
        (lambda m: torch.optim.SGD(nn.Linear(2, 5).parameters()), "a parameter of shape (5, 2) that is none of the"),
        (lambda m: hooked(m), "calls <function hooked.<locals>.<lambda>"),
        (lambda m: [torch.optim.SGD(m.parameters())] * 2, "another optimizer updates too"),
    ],
)
def test_optimizers_that_are_refused(make: Any, said: str) -> None:
    model = network(torch.float32)
    with pytest.raises(CaptureError) as refused:
        training_step(model, loss, batches(torch.float32, 1)[0], make(model))
    assert said in str(refused.value)


# --- registered optimizers --------------------------------------------------------------------------------------------


class Signed(torch.optim.Optimizer):
    """Steps by the sign of a moving average of the gradient, with sizes that fall with the number of steps."""

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float = 0.01, beta: float = 0.9) -> None:
        super().__init__(parameters, {"lr": lr, "beta": beta})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state["step"] = state.get("step", 0) + 1
                average = state.setdefault("average", torch.zeros_like(parameter))
                average.mul_(group["beta"]).add_(parameter.grad, alpha=1 - group["beta"])
                parameter.add_(average.sign(), alpha=-group["lr"] / state["step"] ** 0.5)


def initial(parameter: Tensor, group: Any) -> dict[str, Tensor]:
    return {"step": torch.zeros(()), "average": torch.zeros_like(parameter)}


def update(parameter: Tensor, gradient: Tensor, state: Any, lr: Tensor, group: Any) -> Any:
    step = state["step"] + 1
    average = group["beta"] * state["average"] + (1 - group["beta"]) * gradient
    return parameter - lr / step.double().sqrt() * average.sign(), {"step": step, "average": average}


def test_a_registered_optimizer() -> None:
    """Its count is a Python number, one for each parameter."""
    model = network(torch.float64)
    register_optimizer(Signed, initial=initial, update=update, shared=["step"])
    optimizer = Signed(model.parameters())
    data = batches(torch.float64, 12)
    stepped(model, optimizer, data[0])
    capture = training_step(model, loss, data[0], optimizer, dynamic_shapes=(BATCH, BATCH))
    assert {name for name in capture.state if "step" in name} == {"optimizer.step"}
    trainer = onnx_ops.Trainer(capture)
    twin = copy.deepcopy(model)
    twin_optimizer = Signed(twin.parameters())
    for batch in data[1:]:
        trainer.step(x=batch[0].numpy(), y=batch[1].numpy())
        stepped(model, optimizer, batch)
    check_weights(trainer, model, 1e-9)
    load_into_torch(trainer.state_dict(), twin, twin_optimizer)
    assert {float(state["step"]) for state in twin_optimizer.state.values()} == {12}


@pytest.mark.parametrize(
    ("start", "rule", "said"),
    [
        (lambda p, g: None, update, "the initial state of Signed is NoneType, expected a dict of tensors"),
        (lambda p, g: {"a.b": p}, update, "has the key 'a.b', expected a name without dots"),
        (lambda p, g: {"step": 0}, update, "has int for 'step', expected a tensor"),
        (lambda p, g: {"step": p}, update, "has 'step' of shape (16, 6), expected a scalar, as it is shared"),
        (
            initial,
            lambda p, d, s, lr, g: p - lr * d,
            "for '0.weight' returns float64 of shape (16, 6), expected a tuple",
        ),
        (
            initial,
            lambda p, d, s, lr, g: (p - lr * d, {}),
            "returns the state [], expected that of `initial`, ['average'",
        ),
        (
            initial,
            lambda p, d, s, lr, g: (p[0], s),
            "returns float64 of shape (6,) for the parameter, expected float64 of",
        ),
        (
            initial,
            lambda p, d, s, lr, g: (p, s | {"average": d.float()}),
            "returns float32 of shape (16, 6) for the state 'average', expected float64 of shape (16, 6)",
        ),
        (
            initial,
            lambda p, d, s, lr, g: (p, s | {"average": 0}),
            "returns int for the state 'average', expected float64",
        ),
        (
            initial,
            lambda p, d, s, lr, g: (p.sub_(lr * d), s),
            "changes the parameter in place, expected that it returns",
        ),
        (initial, lambda p, d, s, lr, g: (p if d.sum() > 0 else p - d, s), "decides by the numbers in a tensor"),
        (initial, lambda p, d, s, lr, g: (p - lr * d, s), "the optimizer's update of the captured graph are not those"),
    ],
)
def test_rules_that_are_refused(start: Any, rule: Any, said: str) -> None:
    model = network(torch.float64)
    register_optimizer(Signed, initial=start, update=rule, shared=["step"])
    with pytest.raises(CaptureError) as refused:
        training_step(model, loss, batches(torch.float64, 1)[0], Signed(model.parameters()))
    assert said in str(refused.value)


@pytest.mark.parametrize(
    ("kind", "shared", "said"),
    [
        (torch.optim.SGD, (), "torch.optim.SGD has a rule already; register a subclass"),
        (nn.Linear, (), "expected a subclass of torch.optim.Optimizer"),
        (Signed, "step", "`shared` is the string 'step'"),
    ],
)
def test_registrations_that_are_refused(kind: Any, shared: Any, said: str) -> None:
    with pytest.raises(CaptureError, match=said):
        register_optimizer(kind, initial=initial, update=update, shared=shared)


def test_functions_of_the_same_scalars_run_once() -> None:
    """But not those of equal scalars, of numbers of another type or sign, or of tensors with elements."""
    one, same, row = torch.ones(()), torch.ones(()), torch.ones(2)
    with SharedScalars():
        assert one + 1 is one + 1
        assert torch.tensor(0.5, dtype=torch.float64) is torch.tensor(0.5, dtype=torch.float64)
        assert one + 1 is not same + 1
        assert row * 2 is not row * 2
        assert torch.tensor(1).dtype is torch.int64
        assert torch.tensor(1.0).dtype is torch.float32
        assert torch.tensor(True).dtype is torch.bool
        assert torch.tensor(1.0, dtype=torch.float64).dtype is torch.float64
        assert torch.copysign(one, 0.0) == 1
        assert torch.copysign(one, -0.0) == -1
        assert one.sub(2) == torch.tensor(-1)
