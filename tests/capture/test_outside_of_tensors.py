"""What a step does outside of tensors is reported, with check=False too: random numbers, attributes that change."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from captures import compared, gradients
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import Dim

import onnx_ops
from onnx_ops.torch import CaptureError, training_step
from onnx_ops.torch.tracing.randomness import Random

GENERATOR = np.random.default_rng(0)
DRAWS: dict[str, tuple[Callable[[], float], str]] = {
    "numpy": (lambda: float(np.random.rand()), r"draws random numbers by numpy\.random"),  # noqa: NPY002
    "python": (random.random, "draws random numbers by random"),
    "own generator": (lambda: float(GENERATOR.random()), "draws random numbers outside of PyTorch"),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_outside_of_pytorch_are_refused(name: str) -> None:
    draw, message = DRAWS[name]
    random.seed(0)  # any two numbers may be as close as rounding allows
    np.random.seed(0)  # noqa: NPY002

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return (model(x) * draw()).sum()

    for check in (True, False):
        with pytest.raises(CaptureError, match=f"two runs of the loss.*{message}"):
            gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),), check=check)


def test_draws_that_change_nothing_are_warned_of() -> None:
    """As those of a layer drop whose probability is 0."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * (2 if random.random() < 0 else 1) * nn.functional.dropout(x, 0.5).sum()

    with pytest.warns(UserWarning, match="draws random numbers by random. Two runs have the same results"):
        gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),))


def test_draws_that_agree_by_chance_are_named_where_the_graph_differs() -> None:
    """As a model that sees its own prediction in half of the steps, `if random() < 0.5`, in two runs that do not."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        random.random()
        return (model(x) * (2 if isinstance(x, FakeTensor) else 1)).sum()

    with (
        pytest.warns(UserWarning, match="draws random numbers by random"),
        pytest.raises(CaptureError, match=r"not those of PyTorch.* The loss draws random numbers by random\. Draw"),
    ):
        gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),))


@pytest.mark.parametrize("scheduled", [False, True])
def test_learning_rates_in_losses_are_warned_of(scheduled: bool) -> None:
    """The graph has the number of the example; what the optimizer has is the same afterwards."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    (group,) = optimizer.param_groups

    def decayed(model: nn.Module, x: Tensor) -> Tensor:
        rate = scheduler.get_last_lr()[0] if scheduled else optimizer.param_groups[0]["lr"]
        return model(x).square().sum() + rate * model.weight.square().sum()

    def plain(model: nn.Module, x: Tensor) -> Tensor:
        assert optimizer.param_groups[0]["momentum"] == 0
        return model(x).square().sum()

    x = torch.ones(2, 3)
    with pytest.warns(UserWarning, match=r"learning rate of the optimizer at .*test_outside_of_tensors\.py, line \d+"):
        capture = training_step(model, decayed, (x,), optimizer)
    assert optimizer.param_groups[0] is group
    assert type(group) is dict
    (loss,) = onnx_ops.InferenceSession(capture.model).run(["loss"], capture.state | {"x": x.numpy()})
    np.testing.assert_allclose(loss, decayed(model, x).item(), rtol=1e-6)
    training_step(model, plain, (x,), [optimizer])


class Counting(nn.Module):
    """Keeps the number of its calls in an attribute, as schedules of weights and of codebooks do."""

    def __init__(self, factor: Callable[[int], float]) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.calls = 0
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.layer(x) * self.factor(self.calls)


@pytest.mark.parametrize("check", [True, False])
def test_numbers_that_change_with_each_step_are_refused(check: bool) -> None:
    model = nn.Sequential(Counting(lambda calls: min(1.0, calls / 100)))
    with pytest.raises(CaptureError, match=r"changes '0.calls' \(0, then 1\).* register it by register_buffer"):
        gradients(model, lambda model, x: model(x).sum(), (torch.ones(2, 3),), check=check)
    assert model[0].calls == 0


def test_numbers_that_change_later_steps_only_are_warned_of() -> None:
    model = Counting(lambda calls: 1.0 if calls < 100 else 0.5)
    with pytest.warns(UserWarning, match=r"changes 'calls' \(0, then 1\)"):
        gradients(model, lambda model, x: model(x).sum(), (torch.ones(2, 3),))


@pytest.mark.parametrize("outputs", [2, 5000])
def test_numbers_that_change_each_step_a_little_are_refused(outputs: int) -> None:
    """By less than graphs may differ from PyTorch; the number is the class's before the first call."""

    class Annealed(nn.Linear):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return super().forward(x) * (1 + self.calls / 100_000)

    model = Annealed(3, outputs)
    with pytest.raises(CaptureError, match=r"changes 'calls' \(0, then 1\).* register it by register_buffer"):
        gradients(model, lambda model, x: model(x).square().sum(), (torch.ones(2, 3),))
    assert model.calls == 0
    assert "calls" not in vars(model)


class Schedule:
    """An object beside the model that counts steps."""

    def __init__(self) -> None:
        self.steps = 0

    def factor(self) -> float:
        self.steps += 1
        return 1.0 if self.steps < 100 else 0.5

    def __call__(self, model: nn.Module, x: Tensor) -> Tensor:
        return model(x).sum() * self.factor()


class OfClass(nn.Linear):
    """Counts the calls of all instances."""

    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        OfClass.calls += 1
        return super().forward(x) * (1.0 if OfClass.calls < 100 else 0.5)


def counting(model: nn.Module, x: Tensor) -> Tensor:
    counting.calls = getattr(counting, "calls", 0) + 1
    return model(x).sum() * (1.0 if counting.calls < 100 else 0.5)


counting.calls = 0


def test_classes_and_functions_that_change_later_steps_only_are_warned_of() -> None:
    for model, loss, name in (
        (OfClass(3, 2), lambda model, x: model(x).sum(), "OfClass.calls"),
        (nn.Linear(3, 2), counting, "calls"),
    ):
        with pytest.warns(UserWarning, match=rf"changes '{name}' \(0, then 1\)"):
            gradients(model, loss, (torch.ones(2, 3),))


def test_objects_that_change_later_steps_only_are_warned_of() -> None:
    """Of the model, of a variable of the loss, or that is the loss; that of the model is as before."""
    model, schedule = Counting(float), Schedule()
    model.schedule = Schedule()
    model.factor = lambda _: model.schedule.factor()
    losses = (
        (lambda model, x: model(x).sum(), "schedule.steps"),
        (lambda model, x: model.layer(x).sum() * schedule.factor(), "schedule.steps"),
        (lambda model, x: schedule(model.layer, x), "schedule.steps"),
        (Schedule(), "self.steps"),
    )
    for loss, name in losses:
        with pytest.warns(UserWarning, match=rf"changes .*'{name}' \(\d+, then \d+\)"):
            gradients(model, loss, (torch.ones(2, 3),))
    assert model.schedule.steps == 0


def test_numbers_that_are_kept_of_each_step_are_warned_of() -> None:
    """As for the mean of the last losses, by which that of a step is divided; those of one batch are equal."""

    class Averaging(nn.Linear):
        losses: list[float]

        def forward(self, x: Tensor) -> Tensor:
            value = super().forward(x).square().mean()
            self.losses.append(value.item())
            return value / (sum(self.losses) / len(self.losses))

    model = Averaging(3, 2)
    model.losses = []
    with pytest.warns(UserWarning, match=r"changes 'len\(losses\)' \(1, then 2\)"):
        gradients(model, lambda model, x: model(x), (torch.ones(2, 3),))


def test_tensors_that_a_module_keeps_are_computed_in_each_step() -> None:
    """Also where a second run in PyTorch fails, as the tensor that it finds belongs to a graph that is freed."""

    class Keeping(nn.Linear):
        kept: Tensor | None = None

        def forward(self, x: Tensor) -> Tensor:
            self.kept = self.weight.square() if self.kept is None else self.kept
            return nn.functional.linear(x, self.kept)

    gradients(Keeping(3, 2), lambda model, x: model(x).sum(), (torch.ones(2, 3),))


class Integrating(nn.Module):
    """Adds its results up in a buffer, which has the shape of the batch from the first call on."""

    memory: Tensor

    def __init__(self, resets: bool) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.resets = resets
        self.register_buffer("memory", torch.zeros(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.resets:
            self.memory = torch.zeros_like(self.memory)
        for _ in range(2):
            added = self.layer(x)
            if self.memory.shape != added.shape:
                self.memory = torch.zeros_like(added)
            self.memory = 0.5 * self.memory.detach() + added
        return self.memory


def test_buffers_that_each_step_makes_anew_are_no_state() -> None:
    """As the membrane potentials of spiking networks."""
    model = Integrating(resets=True)
    examples = [torch.randn(3, 3), torch.randn(5, 3), torch.randn(2, 3)]
    capture = compared(model, lambda model, x: model(x).square().mean(), examples, {0: Dim("rows")})
    assert set(capture.state) == {"layer.weight", "layer.bias"}


@pytest.mark.parametrize("check", [True, False])
def test_buffers_of_a_new_shape_that_the_next_step_reads_are_refused(check: bool) -> None:
    message = r"shape of the buffer 'memory' from \(0,\) to \(3, 2\).*call the model once before the capture"
    with pytest.raises(CaptureError, match=message):
        gradients(Integrating(resets=False), lambda model, x: model(x).sum(), (torch.ones(3, 3),), check=check)


def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(3)
    return torch.rand(x.shape)


def forked(x: Tensor) -> Tensor:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return torch.rand(x.shape)


@pytest.mark.parametrize(
    "draw", [seeded, forked, lambda x: torch.rand(x.shape, generator=torch.Generator().manual_seed(3))]
)
def test_draws_from_a_seed_that_the_loss_sets_are_refused(draw: Callable[[Tensor], Tensor]) -> None:
    model, before = nn.Linear(3, 2), torch.get_rng_state()
    with pytest.raises(CaptureError, match="seeds a generator with the same number in each step"):
        gradients(model, lambda model, x: model(x * draw(x)).sum(), (torch.ones(2, 3),))
    assert torch.equal(torch.get_rng_state(), before)


def two_generators(x: Tensor, seed: int) -> list[Tensor]:
    return [torch.randn(x.shape, generator=torch.Generator().manual_seed(seed)) for _ in range(2)]


def of_two_distributions(x: Tensor, seed: int) -> list[Tensor]:
    return [draw(x.shape, generator=torch.Generator().manual_seed(seed)) for draw in (torch.rand, torch.randn)]


def seeded_again(x: Tensor, seed: int) -> list[Tensor]:
    generator = torch.Generator()
    return [torch.randn(x.shape, generator=generator.manual_seed(seed)) for _ in range(2)]


def restored(x: Tensor, seed: int) -> list[Tensor]:
    with torch.random.fork_rng():
        first = torch.randn(x.shape)
    return [first, torch.randn(x.shape)]


@pytest.mark.parametrize("draws", [two_generators, of_two_distributions, seeded_again, restored])
def test_numbers_that_are_drawn_twice_are_refused(draws: Callable[[Tensor, int], list[Tensor]]) -> None:
    """By a generator in the same state, as in the Brownian motions of torchsde; a seed is another in each step."""

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        one, two = draws(x, np.random.randint(10**6))  # noqa: NPY002 (NumPy's own generator)
        return model(x + one * two).square().mean()

    model, before = nn.Linear(3, 2), torch.get_rng_state()
    with pytest.raises(CaptureError, match=r"of an earlier draw again at .*test_outside_of_tensors\.py, line"):
        gradients(model, loss, (torch.ones(2, 3),))
    assert torch.equal(torch.get_rng_state(), before)


def test_states_of_generators_are_told_apart_in_a_trace() -> None:
    """A FakeTensorMode makes tensors without memory of copies."""
    for _ in range(5):
        with FakeTensorMode(), Random(torch.zeros((), dtype=torch.int64)) as draws:
            for _ in range(5):
                torch.rand(100)
        assert not draws.seeded


def test_draws_from_a_generator_of_the_model_are_captured() -> None:
    generator = torch.Generator().manual_seed(3)
    before = generator.get_state()

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.random.fork_rng():
            kept = torch.rand(x.shape)
        return model(x * torch.rand(x.shape, generator=generator) * kept).sum()

    gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),))
    assert torch.equal(generator.get_state(), before)
