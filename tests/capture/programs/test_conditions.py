"""Steps that follow the example where code branches on data refuse data that would branch elsewhere."""

from __future__ import annotations

import copy
import math
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from captures import gradients
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional

import onnx_ops
from onnx_ops import Error, InferenceSession, Step, StepError, Trainer
from onnx_ops.torch import Capture, CaptureError, training_step
from onnx_ops.torch.lowering import lower
from scripts.trainings.threads import ThreadCommunicator, together

CLASSES = 9


class Guarded(nn.Module):
    """Validations and branches as libraries have them, in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(5, CLASSES), nn.BatchNorm1d(CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(self.layer(x))
        if not torch.isfinite(hidden).all():
            hidden = hidden.clamp(-1, 1)
        if self.layer.weight.norm().item() > 50 or (x.amax() - x.amin()).item() > 20:
            hidden = hidden / 2
        return hidden


def loss(model: nn.Module, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
    if labels.max() >= CLASSES - 1:
        raise ValueError("the last class is reserved")
    if (labels == 3).sum():
        x = 2 * x
    logits = model(x)
    if int(labels.min()) + 1 > 1 and x.isnan().any():  # the second part is not evaluated
        logits = -logits
    spread = labels[:2].tolist()
    if spread[0] > spread[1]:
        logits = logits * 3
    return {"loss": functional.cross_entropy(logits, labels), "logits": logits}


def batch(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    labels = torch.randint(4, CLASSES - 1, (rows,))
    labels[:3] = torch.tensor([0, 4, 3])
    return torch.randn(rows, 5), labels


def arrays(x: Tensor, labels: Tensor) -> dict[str, np.ndarray]:
    return {"x": x.numpy(), "labels": labels.numpy()}


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Capture]:
    torch.manual_seed(0)
    model = Guarded()
    rows = {0: Dim("rows")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        capture = training_step(
            model,
            loss,
            batch(4, 0),
            torch.optim.AdamW(model.parameters(), 0.05),
            dynamic_shapes=(rows, rows),
            specialize=True,
        )
    return model, capture


def number_of(text: str) -> int:
    """The number of the line of this file with a text."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.strip().startswith(text))


X, LABELS = batch(4, 1)
REFUSED = {
    "bool": ((X, torch.tensor([0, 4, 3, 8])), "if labels.max() >=", "reads True from tensors, and read False in"),
    "count": ((X, torch.tensor([0, 4, 4, 5])), "if (labels == 3)", "reads False from tensors, and read True in"),
    "list": ((X, torch.tensor([5, 4, 3, 0])), "if spread[0] >", "reads 5, 4 from tensors, and read 0, 4 in"),
    "number": ((X, LABELS + (LABELS == 0)), "if int(labels.min())", "reads 1 from tensors, and read 0 in"),
    "infinity": ((X * torch.inf, LABELS), "if not torch.isfinite", "reads False from tensors, and read True in"),
    "float": ((X * 20, LABELS), "if self.layer.weight", "reads .* from tensors, and read"),
}


@pytest.mark.parametrize("how", ["in place", "two sets", "accumulated"])
def test_data_that_branch_elsewhere_are_refused(trained: tuple[nn.Module, Capture], how: str) -> None:
    """No step changes the state, and the error names the line with both numbers."""
    _, capture = trained
    trainer = Trainer(capture, keep_previous=how == "two sets")
    make = trainer.accumulate if how == "accumulated" else trainer.step
    make(**arrays(*batch(6, 2)))
    before = trainer.state_dict()
    for given, line, message in REFUSED.values():
        with pytest.raises(StepError, match=f"test_conditions.py, line {number_of(line)} .*{message}"):
            make(**arrays(*given))
    after = trainer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert set(make(**arrays(*batch(5, 3)))) == {"loss", "logits"}


def test_steps_with_conditions_are_those_of_pytorch(trained: tuple[nn.Module, Capture]) -> None:
    model, capture = trained
    trainer, twin = Trainer(capture), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(twin.parameters(), 0.05)
    for number in range(8):
        given = batch(3 + number % 4, number)
        reported = trainer.step(**arrays(*given))
        optimizer.zero_grad()
        outputs = loss(twin, *given)
        outputs["loss"].backward()
        optimizer.step()
        assert list(reported) == ["loss", "logits"]
        # Eight updates by AdamW, which divides by the gradients' sizes.
        np.testing.assert_allclose(reported["logits"], outputs["logits"].detach().numpy(), rtol=1e-3, atol=1e-4)


def test_workers_refuse_what_one_of_them_refuses(trained: tuple[nn.Module, Capture]) -> None:
    _, capture = trained

    def train(communicator: ThreadCommunicator) -> tuple[str, bool]:
        trainer = Trainer(capture, communicator=communicator)
        trainer.step(**arrays(*batch(4, communicator.rank)))
        before = trainer.state_dict()
        wrong = REFUSED["count"][0] if communicator.rank else batch(4, 5)
        with pytest.raises(Error, match=r"reads False from tensors|worker 1") as refused:
            trainer.step(**arrays(*wrong))
        after = trainer.state_dict()
        return type(refused.value).__name__, all(np.array_equal(before[name], after[name]) for name in before)

    assert together(2, train) == [("WorkerError", True), ("StepError", True)]


def test_files_of_steps_with_conditions(trained: tuple[nn.Module, Capture], tmp_path: Path) -> None:
    """A file keeps the conditions; other programs see them as outputs, and the inference graph fails."""
    _, capture = trained
    capture.save(tmp_path / "step.onnx")
    trainer = Trainer(tmp_path / "step.onnx")
    with pytest.raises(StepError, match="reads False from tensors"):
        trainer.step(**arrays(*REFUSED["count"][0]))
    plain = ort.InferenceSession(tmp_path / "step.onnx")
    for given, holds in ((batch(4, 1), True), (REFUSED["count"][0], False)):
        found, numbers = plain.run(["condition.holds", "condition.numbers"], arrays(*given))
        assert found.all() == holds
        assert found.sum() >= len(found) - 1
        assert len(numbers) >= len(found)
    trainer.export(tmp_path / "network.onnx")
    network = ort.InferenceSession(tmp_path / "network.onnx")
    assert network.run(None, {"x": X.numpy()})[0].shape == (4, CLASSES)
    with pytest.raises(Exception, match=r"condition \d+: test_conditions\.py, line \d+ \(if not torch\.isfinite"):
        network.run(None, {"x": (X * torch.nan).numpy()})


def branches(model: nn.Linear, x: Tensor) -> Tensor:
    return model(x).sum() if x.sum() > 0 else -model(x).sum()


def test_without_the_option_the_error_has_line_and_number() -> None:
    number = number_of("return model(x).sum()")
    with pytest.raises(CaptureError, match=rf"test_conditions\.py, line {number}, by True in the example.*specialize"):
        gradients(nn.Linear(2, 2), branches, (torch.ones(2, 2),))


def test_the_error_does_not_name_the_option_that_is_given() -> None:
    def selected(model: nn.Linear, x: Tensor) -> Tensor:
        rows = x[: int(x.max())]
        return model(x).sum() * (2 if len(rows) > 1 else 1)

    with pytest.raises(CaptureError, match=r"decides by the numbers(?!.*specialize=True).*torch\.where"):
        gradients(nn.Linear(2, 2), selected, (torch.tensor([[0.0, 3.0]] * 4),), specialize=True)


def test_branches_on_numbers_that_numpy_computes() -> None:
    """As in TimesNet; what divides by a number that is 0 is a condition that does not hold."""

    def periods(model: nn.Linear, x: Tensor) -> Tensor:
        period = 8 // x.sum(0).topk(1).indices.numpy()
        return model(x).sum() * (2 if 3 % period[0] else 1)

    capture = gradients(nn.Linear(3, 2), periods, (torch.tensor([[0.0, 0.0, 1.0]]),), specialize=True)
    session = onnx_ops.InferenceSession(capture.model)
    for place, expected in enumerate([False, True, True]):
        holds = session.run(["condition.holds"], capture.state | {"x": np.eye(3, dtype=np.float32)[[place]]})
        assert np.all(holds) == expected


def test_a_second_step_that_violates_a_condition_is_reported() -> None:
    """Neither another batch nor another state can be compared where the draw decides."""

    def drawn(model: nn.Linear, x: Tensor) -> Tensor:
        return model(x).sum() * len(range(int(1e6 * torch.rand([]) * x.mean())))

    with pytest.warns(UserWarning, match=r"captured state only.*test_conditions\.py, line \d+ .*reads"):
        gradients(nn.Linear(2, 2), drawn, (torch.ones(2, 2),), specialize=True)


class Flagged(nn.Module):
    """A flag that no step changes, and a buffer that data are written over."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("flag", torch.ones(1))
        self.register_buffer("limits", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.layer(x)
        return hidden if self.flag[0] + 1 == 2 else -hidden


def test_flags_are_conditions_without_the_option() -> None:
    """Code may branch on buffers that no step changes; not on copies of them that data were written to."""

    def plain(model: Flagged, x: Tensor) -> Tensor:
        return model(x).sum()

    def overwritten(model: Flagged, x: Tensor) -> Tensor:
        limits = model.limits.clone()
        limits[:1].copy_(x[0, :1])
        return model(x).sum() * (2 if limits.max() > 0 else 1)

    model, x = Flagged(), torch.ones(2, 2)
    trainer = Trainer(training_step(model, plain, (x,), torch.optim.SGD(model.parameters(), 0.1), inference=False))
    trainer.step(x=x.numpy())
    trainer.load_state_dict(trainer.state_dict() | {"flag": np.zeros(1, np.float32)})
    with pytest.raises(StepError, match=r"self\.flag\[0\].*reads False from tensors, and read True in the example"):
        trainer.step(x=x.numpy())
    with pytest.raises(CaptureError, match=r"decides by the numbers.*specialize"):
        gradients(model, overwritten, (x,))


class Initialized(nn.Module):
    """Sets its shift by the first batch, as activation norm in normalizing flows does."""

    done: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.shift = nn.Linear(3, 2), nn.Parameter(torch.zeros(2))
        self.register_buffer("done", torch.tensor(0.0))

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.layer(x)
        if not self.done > 0:
            with torch.no_grad():
                self.shift.copy_(-hidden.mean(0))
            self.done = torch.tensor(1.0)
        return hidden + self.shift


def test_steps_that_their_first_run_initializes_are_refused() -> None:
    """The steps after it would take the other way."""

    def initialized(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    torch.manual_seed(0)
    model, x = Initialized(), torch.randn(5, 3)
    message = (
        r"test_conditions.py, line \d+ \(if not self.done > 0:\) decides by the buffer 'done'.*call the model once"
    )
    with pytest.raises(CaptureError, match=message):
        gradients(model, initialized, (x,), specialize=True)
    model(x)
    trainer = Trainer(training_step(model, initialized, (x,), torch.optim.SGD(model.parameters(), lr=0.1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        value = initialized(model, x)
        np.testing.assert_allclose(trainer.step(x=x.numpy())["loss"], value.item(), rtol=1e-5)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()


def twice(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    rows = (labels > 1).nonzero()
    assert len(rows) == 2 * len(x)
    return (model(x) * rows[: len(x), 1:]).sum()


def masked(model: nn.Module, x: Tensor, labels: Tensor) -> Tensor:
    return (model(x)[:, 0] * x[labels[:, 0] > 1][:, 0]).sum()


@pytest.mark.parametrize(("loss", "numbers"), [(twice, [5, 2]), (masked, [1, 2])])
@pytest.mark.parametrize("dead_code", [True, False], ids=["with dead code", "without"])
def test_conditions_on_sizes_compare_what_data_have(
    loss: Callable[..., Tensor], numbers: list[int], dead_code: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not sizes with themselves, whichever nodes come first that compute a size."""

    def shared(module: torch.fx.GraphModule) -> None:
        if not dead_code:
            module.graph.eliminate_dead_code()
        share_sizes(module)

    share_sizes = lower._share_sizes
    monkeypatch.setattr(lower, "_share_sizes", shared)
    torch.manual_seed(0)
    example = torch.randn(3, 5), torch.tensor([[2, 2, 3, 0], [2, 0, 1, 2], [3, 1, 0, 0]])
    dims = ({0: Dim("N")}, {0: Dim("N")})
    capture = gradients(nn.Linear(5, 1), loss, example, dynamic_shapes=dims, specialize=True, check=False)
    session = onnx_ops.InferenceSession(capture.model)
    feeds = {"x": np.ones((2, 5), np.float32), "labels": np.array([[2, 2, 3, 0], [1, 0, 3, 2]])}
    holds, found = session.run(["condition.holds", "condition.numbers"], capture.state | feeds)
    assert not holds.all()
    assert found.tolist() == numbers


@pytest.mark.parametrize("reads", [False, True])
def test_the_loss_runs_for_what_depends_on_data_only_if_it_does(reads: bool) -> None:
    """Besides the three runs with numbers that each capture makes."""
    runs = []

    def counted(model: nn.Module, x: Tensor) -> Tensor:
        runs.append(type(x) is Tensor)
        return model(x).sum() * (2.0 if reads and model.flag else 3.0)

    model = nn.Linear(2, 1)
    model.register_buffer("flag", torch.tensor(True))
    gradients(model, counted, (torch.ones(3, 2),), check=False, inference=False)
    assert runs.count(True) == 3 + reads


def test_conditions_on_constants_are_none() -> None:
    """Nor on buffers that are not in the state_dict, as those with the paddings of EnCodec's convolutions."""
    table = torch.tensor([1, 2, 3])

    def constant(model: nn.Linear, x: Tensor) -> Tensor:
        padded = functional.pad(model(x), (int(model.sides[0]), model.sides[1].item()), mode="reflect")
        return padded.sum() * (2 if table.max() > 2 else int(table[0]))

    model = nn.Linear(2, 3)
    model.register_buffer("sides", torch.tensor([1, 2]), persistent=False)
    capture = gradients(model, constant, (torch.ones(2, 2),), inference=lambda model, x: constant(model, x))
    assert not [value.name for value in capture.model.graph.output if value.name.startswith("condition")]


def _marked(marks: Tensor, place: Any) -> Tensor:
    marks[place] = 0
    return marks


def _marked_in_a_row(marks: Tensor, place: Any) -> Tensor:
    marks.view(2, 2)[place // 2, :1].zero_()
    return marks


@pytest.mark.parametrize("mark", [_marked, _marked_in_a_row])
def test_constants_that_are_written_to_at_places_in_data(mark: Callable[[Tensor, Any], Tensor]) -> None:
    """Code then branches on data."""

    def marked(model: nn.Module, x: Tensor) -> Tensor:
        marks = mark(torch.ones(4), int(model(x)[0].argmax()))
        scale = 2 if marks[0] > 0 else 3
        return model(x).square().sum() * marks.sum() * scale + marks[: int(marks.sum())].sum()

    model, x = nn.Linear(4, 4), torch.eye(4)
    with torch.no_grad():
        model.weight.copy_(torch.eye(4)), model.bias.zero_()
    trainer = Trainer(gradients(model, marked, (x.flip(0),), specialize=True))
    for example in (x.flip(0), x[[2, 0, 1, 3]]):
        found = trainer.step(x=example.numpy())["loss"]
        np.testing.assert_allclose(found, marked(model, example).detach(), rtol=1e-6)
    with pytest.raises(StepError, match=r"test_conditions\.py, line \d+ \(scale = .* reads False from tensors"):
        trainer.step(x=x.numpy())


def test_comparisons_of_whole_tensors() -> None:
    def compared(model: nn.Module, x: Tensor) -> Tensor:
        torch._check_tensor_all(x < 100)  # as in transformers, of the number of image tokens
        scale = 2 if torch.equal(x, x.abs()) else 3
        return model(x).square().mean() * scale * (5 if x.allclose(x[:1]) else 7)

    torch.manual_seed(0)
    model = nn.Linear(4, 4)
    rows = {0: Dim("rows")}
    with pytest.raises(CaptureError, match=r"decides by the numbers in a tensor.* by False in the example"):
        gradients(model, compared, (torch.randn(5, 4),), dynamic_shapes=(rows,))
    step = training_step(
        model,
        compared,
        (torch.randn(5, 4),),
        torch.optim.SGD(model.parameters()),
        dynamic_shapes=(rows,),
        specialize=True,
    )
    trainer, x = Trainer(step), torch.randn(8, 4)
    np.testing.assert_allclose(trainer.evaluate("train", x=x.numpy())["loss"], compared(model, x).item(), rtol=1e-5)
    for other in (x.abs(), x[:1].expand(8, 4)):
        with pytest.raises(StepError, match="reads True from tensors, and read False in the example"):
            trainer.step(x=other.numpy())
    with pytest.raises(StepError, match="reads False from tensors, and read True in the example"):
        trainer.step(x=x.numpy() + 200)


class Skipping(nn.Module):
    """Layers of which each step skips some at random, as the speech models of transformers do."""

    def __init__(self, probability: float, skips: Callable[[float], Any]) -> None:
        super().__init__()
        self.layers, self.probability = nn.ModuleList(nn.Linear(3, 3) for _ in range(2)), probability
        self.skips = skips

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if not (self.training and self.skips(self.probability)):
                x = functional.dropout(layer(x))
        if x.isnan().any():
            x = x.nan_to_num()
        return x


@pytest.mark.parametrize(
    ("specialize", "skips"),
    [
        (False, lambda p: torch.rand([]) < p),
        pytest.param(True, lambda p: torch.rand([]) < p, marks=pytest.mark.full),
        (True, lambda p: bool(torch.rand(1).item() < p)),
        pytest.param(True, lambda p: not torch.rand(1) > p, marks=pytest.mark.full),  # as adapters of peft
    ],
    ids=["without", "less", "number", "not greater"],
)
def test_branches_on_random_numbers(specialize: bool, skips: Callable[[float], Any]) -> None:
    """A step that such a branch refused would draw the same numbers again; a probability of 0 or 1 is no branch."""

    def capture(probability: float) -> Capture:
        model = Skipping(probability, skips)
        return gradients(
            model, lambda model, x: model(x).sum(), (torch.ones(2, 3, requires_grad=True),), specialize=specialize
        )

    with pytest.raises(CaptureError, match=r"decides by random numbers of the step .*test_conditions.py, line \d+; a"):
        capture(0.5)
    for probability in (0.0, 1.0):
        if specialize:
            (condition,) = Step.of(capture(probability).model).conditions
            assert "isnan" in condition.code
        else:
            with pytest.raises(CaptureError, match="specialize=True"):
                capture(probability)


def test_choices_by_random_numbers() -> None:
    """Of the sizes of images, as torchvision's detectors make them: of a single one there is no choice."""

    def capture(*scales: float) -> Capture:
        def loss(model: nn.Module, x: Tensor) -> Tensor:
            place = int(torch.empty(1).uniform_(0.0, float(len(scales))).item())
            return scales[place] * model(x).square().mean()

        return gradients(nn.Linear(3, 2), loss, (torch.ones(2, 3),))

    assert not Step.of(capture(2.0).model).conditions
    with pytest.raises(CaptureError, match=r"decides by random numbers of the step .*test_conditions.py, line \d+; a"):
        capture(2.0, 3.0)


def test_numbers_of_data_as_keys_and_in_lists() -> None:
    """As in the positions of vision-language models: kinds of tokens are keys, and positions are put into lists."""
    scales = {0: 2.0, 3: 5.0}

    def loss(model: nn.Linear, x: Tensor, labels: Tensor) -> Tensor:
        first, last = labels[0].item(), labels[-1]
        offsets = torch.tensor([[labels.max() + 1, 2.5], [last[None], len(x)]])
        weights = labels.new_tensor([last, first]).double() + torch.as_tensor([labels[1], last])
        return (model(x) * scales[first] + offsets[0] * offsets[1]).square().mean() * weights.float().sum()

    torch.manual_seed(0)
    model, x, rows = nn.Linear(2, 2), torch.randn(4, 2), {0: Dim("rows")}
    example = x[:2], torch.tensor([3, 1])
    step = gradients(model, loss, example, dynamic_shapes=(rows, rows), specialize=True)
    session = InferenceSession(step.model)

    def run(x: Tensor, labels: Tensor) -> tuple[float, bool]:
        value, holds = session.run(
            ["loss", "condition.holds"], {**step.state, "x": x.numpy(), "labels": labels.numpy()}
        )
        return float(value), bool(holds.all())

    for labels in (torch.tensor([3, 4, 0, 7]), torch.tensor([3, 1])):
        value, holds = run(x[: len(labels)], labels)
        assert holds
        assert value == pytest.approx(loss(model, x[: len(labels)], labels).item(), rel=1e-5)
    assert not run(x, torch.tensor([0, 1, 1, 1]))[1]


@pytest.mark.parametrize(
    "name",
    [
        lambda label: f"expert_{label}",
        lambda label: f"expert_{label.item()}",
        lambda label: "expert_%d" % label,  # noqa: UP031
        lambda label: "expert_%d" % label.item(),  # noqa: UP031
    ],
)
def test_numbers_of_data_in_the_names_of_modules(name: Callable[[Tensor], str]) -> None:
    """As those of the experts in Switch Transformers; not in messages that are not shown."""

    def loss(model: nn.ModuleDict, x: Tensor, labels: Tensor) -> Tensor:
        message = f"the last label is {labels[-1]}" + " of %d, %.1f%%" % (labels.max(), labels[-1])  # noqa: UP031
        if len(x) == 0:
            raise ValueError(message)
        return torch.stack([model[name(label)](x).square().sum() for label in labels[:2]]).sum()

    torch.manual_seed(0)
    model = nn.ModuleDict({f"expert_{i}": nn.Linear(2, 2) for i in range(3)})
    example = torch.randn(3, 2), torch.tensor([2, 0, 1])
    with pytest.raises(CaptureError, match=r"decides by the numbers.*specialize"):
        gradients(model, loss, example)
    step = gradients(model, loss, example, specialize=True)
    session = InferenceSession(step.model)
    for labels, expected in ([2, 0, 5], True), ([2, 1, 1], False):
        given = {"x": example[0].numpy(), "labels": np.array(labels)}
        value, holds = session.run(["loss", "condition.holds"], step.state | given)
        assert holds.all() == expected
        if expected:
            assert value == pytest.approx(loss(model, example[0], torch.tensor(labels)).item(), rel=1e-5)


PREDICATES: dict[str, Callable[[Tensor], Any]] = {
    "math.isnan of a number": lambda scale: not math.isnan(scale.item()),
    "math.isfinite of a tensor": lambda scale: math.isfinite(scale),
    "math.isinf of a sum": lambda scale: not math.isinf(scale.item() + 1.0) and not math.isnan(scale),
    "numpy.isnan of a number": lambda scale: not np.any(np.isnan(scale.item())),
    "math.erf of a number": lambda scale: math.erf(scale.item()) < 0.9,
    "math.exp of a tensor": lambda scale: math.exp(scale) < 9,
}


@pytest.mark.parametrize("holds", PREDICATES.values(), ids=PREDICATES)
def test_functions_of_numbers_as_conditions(holds: Callable[[Tensor], Any]) -> None:
    def loss(model: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
        if not holds(scale):
            return model(x).sum()
        return model(x).square().mean() * scale

    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(CaptureError, match=r"decides by the numbers.*test_conditions\.py, line \d+.*specialize"):
        gradients(model, loss, (x, torch.tensor(0.5)))
    step = gradients(model, loss, (x, torch.tensor(0.5)), specialize=True)
    session = InferenceSession(step.model)
    for scale in (0.5, -2.0, 0.7, math.nan, math.inf):
        given = {"x": x.numpy(), "scale": np.array(scale, np.float32)}
        value, conditions = session.run(["loss", "condition.holds"], step.state | given)
        assert conditions.all() == holds(torch.tensor(scale))
        if math.isfinite(scale):
            assert value == pytest.approx(loss(model, x, torch.tensor(scale)).item(), rel=1e-5)


def test_functions_of_tensors_are_numbers() -> None:
    """A temperature that is learnt, as `math.exp(self.scale)`, has no gradient in PyTorch."""

    def loss(model: nn.Module, x: Tensor, scale: Tensor) -> Tensor:
        return (model(x) * math.exp(scale) + math.sqrt(scale)).square().mean() / float(scale)

    torch.manual_seed(0)
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    step = gradients(model, loss, (x, torch.tensor(0.5)))
    session = InferenceSession(step.model)
    for scale in (0.5, 2.0):
        given = {"x": x.numpy(), "scale": np.array(scale, np.float32)}
        (value,) = session.run(["loss"], step.state | given)
        assert value == pytest.approx(loss(model, x, torch.tensor(scale)).item(), rel=1e-5)


@pytest.mark.parametrize("keep_previous", [False, True])
def test_conditions_behind_a_node_that_fails(keep_previous: bool) -> None:
    """Some of the conditions depend on what the node would compute; the violated one does not."""

    def loss(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        hidden = model(x)
        kept = torch.zeros(2, 5)
        for i in range(2):
            kept[i, : lengths[i]] = hidden[i, :3][: lengths[i]]
        return kept.square().sum()

    torch.manual_seed(0)
    model, x = nn.Linear(4, 5), torch.randn(2, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    capture = training_step(model, loss, (x, torch.tensor([2, 3])), optimizer, specialize=True, inference=False)
    trainer = Trainer(capture, keep_previous=keep_previous)
    for _ in range(2):
        with pytest.raises(StepError, match=r"test_conditions\.py, line \d+ \(kept\[i, .* reads 3, 4 from tensors"):
            trainer.step(x=x.numpy(), lengths=np.array([2, 4]))
    expected = loss(model, x, torch.tensor([1, 2])).item()
    np.testing.assert_allclose(trainer.step(x=x.numpy(), lengths=np.array([1, 2]))["loss"], expected, rtol=1e-5)


def test_resizing_to_a_size_that_is_read() -> None:
    """As ViLT resizes its positions to the part of an image that its mask has."""

    def loss(model: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
        rows, columns = mask.sum(0)[0], mask.sum(1)[0]
        image = functional.interpolate(model(x), size=(rows, columns), mode="bilinear", align_corners=True)
        return functional.pad(image, (0, mask.shape[1] - columns)).square().mean()

    torch.manual_seed(0)
    model, x, mask = nn.Conv2d(1, 2, 1), torch.randn(2, 1, 4, 4), torch.ones(5, 6, dtype=torch.int64)
    with pytest.raises(CaptureError, match=r"decides by the numbers .* at \S*test_conditions\.py, line \d+"):
        gradients(model, loss, (x, mask))
    capture = gradients(model, loss, (x, mask), specialize=True)
    session = InferenceSession(capture.model)
    other = mask.clone()
    other[:, 3:] = 0
    for given, holds in ((mask, True), (other, False)):
        found = session.run(["loss", "condition.holds"], capture.state | {"x": x.numpy(), "mask": given.numpy()})
        assert found[1].all() == holds
    (got,) = session.run(["loss"], capture.state | {"x": x.numpy(), "mask": mask.numpy()})
    np.testing.assert_allclose(got, loss(model, x, mask).item(), rtol=1e-5)


def test_a_violated_condition_without_which_a_graph_does_not_run() -> None:
    """The second step has the rows in another order; the one that is compared then has another state."""

    def placed(model: nn.Linear, x: Tensor, places: Tensor) -> Tensor:
        index = places if places[0] > 0 else places + 9 * places[0]
        return torch.zeros(4, 2).index_add(0, index, model(x)).square().sum()

    gradients(nn.Linear(2, 2), placed, (torch.ones(5, 2), torch.tensor([0, 1, 2, 3, 3])), specialize=True)


def test_arrays_of_numbers_from_data() -> None:
    def folded(model: nn.Module, x: Tensor) -> Tensor:
        """As TimesNet folds a series by its largest frequencies, and weights these."""
        largest = model(x).abs().mean(0).topk(2).indices.detach().cpu().numpy()
        weights = model(x)[:, largest].exp().mean() + model.bias[largest].sum()
        return weights * sum((model(x) * (5 // (1 + place))).square().mean() for place in largest)

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    capture = gradients(model, folded, (torch.randn(6, 3),), specialize=True)
    session = InferenceSession(capture.model)
    for _ in range(4):
        x = torch.randn(6, 3)
        (got,) = session.run(["loss"], {**capture.state, "x": x.numpy()})
        np.testing.assert_allclose(got, folded(model, x).item(), rtol=1e-5)


class Failing:
    """A context manager whose exit raises an error of its own, as those of tensordict do."""

    def __enter__(self) -> None: ...

    def __exit__(self, *error: object) -> None:
        if error[0] is not None:
            raise RuntimeError("of the exit")


def test_branches_in_context_managers() -> None:
    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with Failing():
            return model(x if (x > 0).any() else -x).sum()

    gradients(nn.Linear(2, 2), loss, (torch.ones(3, 2),), specialize=True)


@pytest.mark.filterwarnings("ignore:.*captured state only")
def test_conditions_on_numbers_that_other_data_do_not_have() -> None:
    """As of the batch sizes of a PackedSequence: the graph reads the third of them, and a batch has fewer."""

    def selected(model: nn.Module, x: Tensor) -> Tensor:
        return torch.stack([model(row[None]) * (2 if row > 0.1 else 1) for row in x[x > 0.5]]).sum()

    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    x = torch.tensor([0.9, 0.8, 0.501])
    step = training_step(model, selected, (x,), optimizer, specialize=True, inference=False, evaluation=True)
    trainer, fewer = Trainer(step), np.array([0.9, 0.8, 0.2], np.float32)
    for run in (trainer.step, partial(trainer.evaluate, "train"), trainer.accumulate):
        with pytest.raises(StepError, match=r"in x\[x > 0\.5\].* reads 2 from tensors, and read 3"):
            run(x=fewer)
    with pytest.raises(StepError, match=r"'condition 1: test_conditions\.py, line .* in x\[x > 0\.5\].* does not hold"):
        trainer.evaluate(x=fewer)
    trainer.evaluate(x=x.numpy())
    trainer.step(x=x.numpy())


def test_branches_on_an_argument_that_the_loss_changes() -> None:
    """The example itself is not changed by the run that finds its numbers."""

    def loss(model: nn.Module, x: Tensor, parts: Tensor) -> Tensor:
        lengths = parts.mul_(x.shape[1]).int()
        packed = nn.utils.rnn.pack_padded_sequence(model(x), lengths, batch_first=True)
        return packed.data.square().sum()

    torch.manual_seed(0)
    model, x, parts = nn.Linear(3, 2), torch.randn(3, 4, 3), torch.tensor([1, 0.5, 0.25])
    trainer = Trainer(gradients(model, loss, (x, parts), specialize=True, inference=False))
    found = trainer.step(x=x.numpy(), parts=parts.numpy())["loss"]
    np.testing.assert_allclose(found, loss(model, x, parts.clone()).detach(), rtol=1e-6)
