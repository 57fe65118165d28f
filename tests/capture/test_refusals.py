"""Errors of models that cannot be captured name the operator, its module, and what to do."""

from __future__ import annotations

import sysconfig
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import optimize

from onnx_ops.torch import CaptureError, gradients


class Layer(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(1.0, 10.0).reshape(3, 3))
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.weight * x)


class Model(torch.nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Identity(), Layer(function))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


def capture(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    gradients(Model(function), lambda model, x: model(x).sum(), (torch.ones(3, 3),))


WHERE = r"body\.1 \(Layer\)"
LINE = r"at \S*test_refusals\.py, line \d+"
REFUSED = {
    "no translation": (
        lambda x: torch.special.zeta(2.5, x),
        rf"zeta, which {WHERE} needs, has no translation.* is run {LINE}.*docs/capture\.md",
    ),
    "no translation of a layer": (
        lambda x: torch.nn.functional.fractional_max_pool2d(x[None], 2, 2, _random_samples=torch.rand(1, 1, 2)),
        rf"fractional_max_pool2d, which {WHERE} needs, has no translation.* is run {LINE}",
    ),
    "no FakeTensor": (
        lambda x: x * torch.histogramdd(x.detach()[:, :2], [3, 3])[0].sum(),
        rf"_histogramdd_\w+, which {WHERE} needs, has no translation.* is run {LINE}",
    ),
    "complex numbers": (
        lambda x: torch.polar(x, x).log1p().abs(),
        rf"{WHERE} computes aten\.log1p\.default of complex numbers {LINE}",
    ),
    "array": (
        lambda x: x * optimize.nnls(x.detach().numpy(), np.ones(3))[1],
        rf"{WHERE} computes with the numbers of a tensor outside of PyTorch {LINE}, in NumPy or SciPy",
    ),
    "function of arrays": (
        lambda x: x * float(np.frexp(x.detach().numpy())[0].sum()),
        rf"{WHERE} computes with the numbers of a tensor outside of PyTorch {LINE}, in NumPy or SciPy",
    ),
    "method of arrays": (
        lambda x: x * len(x.detach().numpy().tobytes()),
        rf"{WHERE} computes with the numbers of a tensor outside of PyTorch {LINE}, in NumPy or SciPy",
    ),
    "index": (lambda x: [x, -x, x][x[0].argmax()], rf"{WHERE} decides by the numbers .* {LINE}"),
    "eigenvalues": (
        lambda x: torch.linalg.eigvals(x).abs(),
        rf"{WHERE} computes aten\.linalg_eig\.default {LINE}, eigenvalues that may be complex.*eigvalsh[^%]*$",
    ),
    "branch on data": (
        lambda x: x if x.sum() > 0 else -x,
        rf"{WHERE} decides by the numbers in a tensor .* {LINE}.*torch\.where",
    ),
    "control flow": (
        lambda x: torch.ops.higher_order.cond(x.sum() > 0, torch.sin, torch.cos, (x,)),
        rf"the control flow operator cond {LINE} cannot be captured.*torch\.cond",
    ),
    "bits": (lambda x: x * x.view(torch.int32), rf"view reads the bits .* torch\.frexp.* \({LINE}\)"),
    "nested tensor": (
        lambda x: torch.nested.as_nested_tensor([x, x[:1]], layout=torch.jagged).exp().values(),
        rf"a nested tensor is made {LINE}, which a graph does not have\. Pad its parts",
    ),
    "nested tensor of strided layout": (
        lambda x: torch.nested.as_nested_tensor([x, x[:1]]).to_padded_tensor(0.0),
        rf"a nested tensor is made {LINE}, which a graph does not have",
    ),
}


def _written(x: torch.Tensor) -> torch.Tensor:
    made = torch.zeros(3)
    seen = made.view(3, 1).expand(3, 3)
    made[0] = x.sum()
    return x if seen.sum() > 0 else -x


def _ordered(x: torch.Tensor) -> torch.Tensor:
    order = torch.randperm(3).tolist()
    for place in order:
        x = 2 * x if place else x + 1
    return x


REFUSED |= {
    "constant that becomes another": (_written, rf"{WHERE} decides by the numbers"),
    "drawn number": (lambda x: x if torch.rand(3).sum() > 0 else -x, rf"{WHERE} decides by random numbers"),
    "drawn order": (_ordered, rf"{WHERE} decides by random numbers"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(CaptureError, match=message):
        capture(function)


def test_the_line_that_calls_an_installed_package() -> None:
    """Of a package of functions such as einops, whose own line does not tell which of its calls is meant."""
    package: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    source = "def halved(x):\n    return x / 2 if x.sum() > 0 else x\ndef called(x):\n    return halved(x)\n"
    exec(compile(source, f"{sysconfig.get_path('purelib')}/package/functions.py", "exec"), package)
    with pytest.raises(CaptureError, match=rf"{WHERE} decides .* at \S*/functions\.py, line 2, called {LINE}, by"):
        capture(lambda x: package["called"](x))


def test_numbers_that_are_specialized_to_those_of_the_example() -> None:
    """By SciPy, which needs numbers; an `if` compares with one."""

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        factors, _ = optimize.nnls(np.array(x.tolist()), np.ones(3))
        return (model(x) * torch.from_numpy(factors).to(x.dtype)).sum()

    torch.manual_seed(0)
    model, x = torch.nn.Linear(2, 2), torch.rand(3, 2)
    with pytest.raises(CaptureError, match=rf"valid for the example alone: \S*{LINE.removeprefix('at ')} requires"):
        gradients(model, loss, (x,), specialize=True)
    x = torch.cat([torch.zeros(1, 2), x])
    gradients(model, lambda model, x: model(x).sum() * (2 if float(x[0].sum()) == 0.0 else 3), (x,), specialize=True)
    x[0] = 0.125
    gradients(model, lambda model, x: model(x).sum() * (2 if x[0, 0].item() == 0.125 else 3), (x,), specialize=True)


KEYS = {5: 1.0, "5": 2.0}


def _integers(sizes: torch.Size) -> np.ndarray:
    """As a package requires them."""
    array = np.asarray(sizes)
    if not np.issubdtype(array.dtype, np.integer):
        raise ValueError(f"Invalid expression '{array}', must be integers")
    return array


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x * KEYS[x.shape[0]],
        lambda x: x * KEYS[f"{x.shape[0]}"],
        lambda x: x * x.shape[0][0],
        lambda x: x.reshape(*_integers(x.shape)),
    ],
)
def test_dynamic_sizes_in_place_of_numbers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    message = (
        rf"{WHERE} does with a dynamic size what only numbers allow {LINE} \((Type|Key|Value)Error.*requires integers"
        " by PyTorch's, or let dynamic_shapes"
    )
    model = Model(lambda x: function(x) if isinstance(x.shape[0], torch.SymInt) else x)
    with pytest.raises(CaptureError, match=message):
        gradients(
            model, lambda model, x: model(x).sum(), (torch.ones(5, 1, 3),), dynamic_shapes=({0: torch.export.Dim("N")},)
        )


@pytest.mark.parametrize("parts", [torch.chunk, torch.tensor_split])
def test_as_many_chunks_as_a_dynamic_size(parts: Callable[[torch.Tensor, int], tuple[torch.Tensor, ...]]) -> None:
    """As Reformer sums by chunks to save memory."""

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([part.sum(dim=-1) for part in parts(model(x), x.shape[0])]).square().sum()

    message = rf"x\.size\(\)\[0\] is to be dynamic, but .* makes the number 4 of it \({LINE}\): .*as many chunks of one"
    with pytest.raises(CaptureError, match=message):
        gradients(Model(torch.sin), loss, (torch.ones(4, 3, 3),), dynamic_shapes=({0: torch.export.Dim("N")},))


def test_a_set_of_the_elements_of_an_array() -> None:
    """Of as many elements as a dynamic size, of which none is a number."""

    def loss(model: torch.nn.Module, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(x[labels == label]).sum() for label in set(labels.numpy())]).sum()

    rows = {0: torch.export.Dim("N")}
    example, said = (torch.ones(3, 2), torch.tensor([0, 1, 1])), f"outside of PyTorch {LINE}, in NumPy"
    with pytest.raises(CaptureError, match=said):
        gradients(torch.nn.Linear(2, 1), loss, example, dynamic_shapes=(rows, rows))


def test_control_flow_on_dynamic_sizes() -> None:
    model = Model(lambda x: torch.ops.higher_order.cond(x.shape[0] > 3, torch.sin, torch.cos, (x,)))
    with pytest.raises(CaptureError, match=rf"the control flow operator cond {LINE} cannot be captured.*torch\.cond"):
        gradients(
            model, lambda model, x: model(x).sum(), (torch.ones(5, 1, 3),), dynamic_shapes=({0: torch.export.Dim("N")},)
        )


def test_a_slice_that_is_broadcast() -> None:
    """Of the third element of an axis that may have two."""
    with pytest.raises(CaptureError, match=rf"a slice along a dynamic axis is broadcast {LINE}, .* say by min=3 of"):
        gradients(
            torch.nn.Linear(3, 2),
            lambda model, x: (model(x)[2:3] * x[:, :2]).sum(),
            (torch.ones(5, 3),),
            dynamic_shapes=({0: torch.export.Dim("N")},),
        )


def test_the_line_that_fixes_a_multiple() -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.stack([model(x[2 * i : 2 * i + 2]).sum() for i in range(x.shape[0] // 2)]).sin().sum()

    with pytest.raises(CaptureError, match=rf"makes the number 4 of it \({LINE}\)"):
        gradients(
            torch.nn.Linear(3, 2), loss, (torch.ones(4, 3),), dynamic_shapes=({0: 2 * torch.export.Dim("pairs")},)
        )


def test_no_range_of_sizes_is_named_where_only_multiples_are_valid() -> None:
    """Beside another condition, which holds for a range of sizes: that they are no multiples."""

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        parts = [rows if len(rows) % 5 == 0 else rows[:1] for rows in (x, x[1:])]
        return model(torch.cat(parts)).sum()

    with pytest.raises(CaptureError, match=r"right only where .* % 5\) == 0 .* by a multiple such as 5 \*"):
        gradients(torch.nn.Linear(3, 2), loss, (torch.ones(10, 3),), dynamic_shapes=({0: torch.export.Dim("N")},))


def test_the_line_that_fixes_a_dimension_of_two_inputs() -> None:
    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.stack([(model(row) * factor).sum() for row, factor in zip(x, y, strict=True)]).sum()

    rows, example = torch.export.Dim("N"), (torch.ones(4, 3), torch.ones(4))
    with pytest.raises(CaptureError, match=rf"makes the number 4 of it \({LINE}\)"):
        gradients(torch.nn.Linear(3, 2), loss, example, dynamic_shapes=({0: rows}, {0: rows}))


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@pytest.mark.parametrize(
    ("whole", "said"),
    [
        (True, r"the model is a program of TorchScript, expected the torch\.nn\.Module"),
        (False, "of which '0' is a program"),
    ],
)
def test_programs_of_torchscript(whole: bool, said: str) -> None:
    """Their numbers of sizes are those of the example."""
    scripted: torch.nn.Module = torch.jit.script(torch.nn.BatchNorm1d(3))
    model = scripted if whole else torch.nn.Sequential(scripted)
    with pytest.raises(CaptureError, match=said):
        gradients(
            model, lambda model, x: model(x).sum(), (torch.ones(4, 3),), dynamic_shapes=({0: torch.export.Dim("N")},)
        )


def test_parameters_without_a_shape() -> None:
    model = torch.nn.Sequential(torch.nn.LazyLinear(2))
    with pytest.raises(CaptureError, match=r"'0\.weight' of the model is uninitialized.*: call the model once"):
        gradients(model, lambda model, x: model(x).sum(), (torch.ones(3, 3),))


def test_an_error_that_is_being_handled_explains_nothing() -> None:
    """The causes of an error end at the one that the caller handles."""
    try:
        capture(REFUSED["branch on data"][0])
    except CaptureError:
        with pytest.raises(CaptureError, match=REFUSED["no translation"][1]):
            capture(REFUSED["no translation"][0])


def test_what_has_no_translation_is_refused_before_the_export(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch.export, "export")
    with pytest.raises(CaptureError, match="zeta"):
        capture(REFUSED["no translation"][0])


def test_elements_that_are_equal() -> None:
    """Which of them topk selects is up to the implementation."""

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        hidden = model(x)
        return hidden.gather(1, (hidden > 0).float().topk(4, 1).indices).square().mean()

    torch.manual_seed(0)
    with pytest.raises(CaptureError, match=rf"not those of PyTorch.*\. topk {LINE} selects among equal elements"):
        gradients(torch.nn.Linear(3, 40), loss, (torch.randn(9, 3),))


@pytest.mark.parametrize("options", [{"inference": True}, {"inference": False, "evaluation": True}], ids=str)
def test_elements_that_are_equal_in_evaluation_mode(options: dict[str, bool]) -> None:
    class Selecting(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = super().forward(x)
            return hidden if self.training else hidden.gather(1, (hidden > 0).float().topk(4, 1).indices)

    torch.manual_seed(0)
    with pytest.raises(CaptureError, match=rf"in evaluation mode.*\. topk {LINE} selects among equal elements"):
        gradients(Selecting(3, 40), lambda model, x: model(x).square().mean(), (torch.randn(9, 3),), **options)


def test_a_sort_of_equal_elements() -> None:
    """PyTorch orders them at will where there are more than 16, unless it is asked for a stable sort."""

    def loss(model: torch.nn.Module, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return (model(x)[places.argsort()] * torch.arange(40.0)[:, None]).sum()

    torch.manual_seed(0)
    with pytest.raises(CaptureError, match=rf"not those of PyTorch.*\. a sort {LINE} has equal elements.*stable=True"):
        gradients(torch.nn.Linear(3, 2), loss, (torch.randn(40, 3), torch.randint(3, (40,))))


def test_collectives_are_left_out(tmp_path: Path) -> None:
    """As that of DINO's center; of one process, in which PyTorch's are the identity."""

    def loss(model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
        center = model(x).detach().sum(0)
        torch.distributed.all_reduce(center)
        return (model(x) - center).square().mean()

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        with pytest.raises(CaptureError, match=rf"c10d\.allreduce_ of .*run {LINE}\. Leave it out.*data-parallel"):
            gradients(torch.nn.Linear(3, 3), loss, (torch.randn(2, 3),))
    finally:
        torch.distributed.destroy_process_group()
