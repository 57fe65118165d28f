"""Translates errors of PyTorch while it traces or exports a model to errors that name operator, module and remedy."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from onnx_ops.torch.base.errors import CaptureError, UnexplainedError
from onnx_ops.torch.operators.sparse_matrices import REMEDY
from onnx_ops.torch.tracing.frames import Line, line_now, line_of_error, raised_by_library
from onnx_ops.torch.tracing.modes import OperatorMode
from onnx_ops.torch.tracing.sizes import LARGEST


@dataclass(frozen=True)
class Location:
    """Where an operator was run first: the module of the model, and the line of code if there is one."""

    module: str
    line: Line | None


class Locations(OperatorMode):
    """A mode that records the module and the line of code that run each operator.

    Attributes:
        number_at: a function that returns the text of the number that a line reads from a tensor in the example; None
            if that is unknown.
        restrictions: the lines that restrict dynamic dimensions, by names such as `x.size()[0]`.
        sizes: the sizes of such dimensions that the graph is right for, if they are a range.
        random: the lines that read numbers that depend on random numbers alone, and the symbols of these numbers.

    Args:
        model: the model.
        specialize: whether the trace goes the way of the example where code branches on data.
    """

    def __init__(self, model: torch.nn.Module, specialize: bool = False) -> None:
        super().__init__()
        self.model, self.specialize = model, specialize
        self._names = {module: name or "the model" for name, module in model.named_modules()}
        self._running: list[torch.nn.Module] = []
        self._locations: dict[str, Location] = {}
        self._of_gradients: dict[int, Location] = {}
        self.number_at: Callable[[Line], str | None] = lambda line: None
        self.restrictions: dict[str, Line] = {}
        self.sizes: Mapping[str, range] = {}
        self.random: Container[Line | sympy.Symbol | None] = ()
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> Locations:
        self._running.clear()  # a trace that an error ended has left modules
        self._hooks = [
            register_module_forward_pre_hook(lambda module, _: self._running.append(module)),
            register_module_forward_hook(lambda module, _, __: self._leave(module)),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self._record(_bare(func))
        return func(*args, **(kwargs or {}))

    def _record(self, name: str) -> None:
        """Record the location of the running operator; in a backward pass, that of the operator differentiated."""
        node = torch._C._current_autograd_node()
        if node is None:
            location = Location(self.module(), line_now())
            self._of_gradients[torch._C._autograd._get_sequence_nr() - 1] = location
            self._locations.setdefault(name, location)
        elif name not in self._locations:
            differentiated = self._of_gradients.get(node._sequence_nr())
            self._locations[name] = differentiated or Location(self.module(), line_now())

    def scripted(self) -> str | None:
        """The name of the first module that is a program of TorchScript; None if there is none."""
        return next((name for module, name in self._names.items() if isinstance(module, torch.jit.ScriptModule)), None)

    def line(self) -> Line | None:
        """The line of the model or loss that is running; in a backward pass, that of the operator differentiated."""
        node = torch._C._current_autograd_node()
        differentiated = None if node is None else self._of_gradients.get(node._sequence_nr())
        return line_now() or (None if differentiated is None else differentiated.line)

    def _leave(self, module: torch.nn.Module) -> None:
        while self._running and self._running.pop() is not module:
            pass

    def module(self) -> str:
        """The innermost running module of the model, by its name in the model."""
        for module in reversed(self._running):
            if module in self._names:
                return f"{self._names[module]} ({type(module).__name__})"
        return "the loss"

    def of(self, operator: str) -> Location:
        """The location of an operator, or of the operator that it is the gradient or a decomposition of."""
        name = operator.split("::")[-1].split(".")[-1]
        if name in self._locations and not name.endswith("_backward"):
            return self._locations[name]
        stem = re.sub(r"_(backward|scatter)$", "", name).lstrip("_")
        for known, location in self._locations.items():
            if known.strip("_").removeprefix("special_").startswith(stem) and not known.endswith("_backward"):
                return location
        return self._locations.get(name, Location("the loss", None))


def refuse_autocast() -> None:
    """Raise a CaptureError if the caller's code runs under torch.autocast."""
    if torch.is_autocast_enabled("cpu"):
        raise CaptureError(
            "torch.autocast surrounds the capture, which the step would not depend on: put it into the loss, around the"
            " call of the model"
        )


@contextlib.contextmanager
def refused_control_flow() -> Iterator[None]:
    """Raise PyTorch's error for a control flow operator, such as that of torch.cond, as a CaptureError."""
    try:
        yield
    except NotImplementedError as error:
        text = _control_flow(error)
        if text is None:
            raise
        raise CaptureError(text) from error


def _control_flow(error: BaseException, where: Locations | None = None) -> str | None:
    found = re.search(r"no rule registered for HigherOrderOperator (\w+)", str(error))
    if found is None:
        return None
    return (
        f"the control flow operator {found[1]}{_at(line_of_error(error))} cannot be captured. Call the functions that"
        " it is given themselves, or torch.cond, torch.while_loop, and scan, associative_scan and map of"
        " torch._higher_order_ops"
    )


def _bare(operator: OpOverload) -> str:
    """The name of an operator without namespace and overload: `add_` for aten.add_.Tensor."""
    return operator.name().split("::")[-1].split(".")[0]


@contextlib.contextmanager
def explained(where: Locations) -> Iterator[None]:
    """Raise errors as CaptureError, whose cause they are."""
    before = sys.exception()  # an exception that the caller is handling is not a cause
    try:
        yield
    except CaptureError as error:
        said = str(error).split("\n\nWhile executing ")[0]  # torch.fx adds the node
        line = None if re.search(r"\bline \d", said) else line_of_error(error)
        error.args = (said if line is None else f"{said} (at {line})",)
        raise
    except Exception as error:
        links = list(causes(error, before))
        text = next(filter(None, (_explanation(link, where) for link in links)), None)
        line = line_of_error(links[0])
        if text:
            raise CaptureError(text) from error
        raise UnexplainedError(f"the step cannot be captured{_at(line)}: {_first_lines(links[0])}") from error


@contextlib.contextmanager
def vectors_explained(graph: GraphModule) -> Iterator[None]:
    """Say in a CaptureError about results of a graph that singular vectors and eigenvectors may be the cause."""
    try:
        yield
    except CaptureError as error:
        if not any(node.target is torch.ops.onnx_ops.orthogonal_rows.default for node in graph.graph.nodes):
            raise
        raise type(error)(
            f"{error}. The signs of eigenvectors and singular vectors, which the loss computes, are arbitrary, and so"
            " are bases of those of equal values: results that depend on them differ"
        ) from error


@contextlib.contextmanager
def ties_explained(graph: GraphModule, run: Callable[[], Any]) -> Iterator[None]:
    """Say in a CaptureError about results of a graph that topk or a sort may be the cause, if it has equal elements.

    Args:
        graph: the graph.
        run: runs the step in PyTorch.
    """
    try:
        yield
    except CaptureError as error:
        if not any(node.target in TIED for node in graph.graph.nodes):
            raise
        with (ties := _Ties()):
            run()
        if not ties.found:
            raise
        line, does = next(iter(ties.found.items()))
        raise type(error)(
            f"{error}. {does.format(_at(line))}: make them different, or take stable sorts such as x.sort(stable=True)"
        ) from error


TIED = {
    torch.ops.aten.topk.default: (
        "topk{} selects among equal elements, of which PyTorch and onnxruntime take different ones"
    ),
    torch.ops.aten.sort.default: (
        "a sort{} has equal elements, which PyTorch brings into any order and onnxruntime leaves in theirs"
    ),
}
"""What may differ where an operator has equal elements, {} being the place."""


class _Ties(OperatorMode):
    """A mode that finds the lines at which topk selects, or orders, among equal elements, or a sort that is not stable.

    Attributes:
        found: what happens at such a line, the place of which is {}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Line | None, str] = {}

    def __torch_dispatch__(
        self, func: OpOverload, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func in TIED and args[0].dim():
            if func is torch.ops.aten.topk.default:
                axis, largest = args[2] if len(args) > 2 else -1, args[3] if len(args) > 3 else True
                ordered = args[0].sort(dim=axis, descending=largest).values.movedim(axis, -1)[..., : args[1] + 1]
            else:
                axis = args[1] if len(args) > 1 else -1
                ordered = args[0].sort(dim=axis).values.movedim(axis, -1)
            if (ordered[..., 1:] == ordered[..., :-1]).any():
                self.found[line_now()] = TIED[func]
        return func(*args, **(kwargs or {}))


def causes(error: BaseException, before: BaseException | None = None) -> Iterator[BaseException]:
    """The chain of causes and contexts of an error up to `before`, exclusive; the innermost first."""
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link is not before and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return reversed(chain)


def _first_lines(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines[:3])}"


def _explanation(error: BaseException, where: Locations) -> str | None:
    if isinstance(error, CaptureError):  # raised by a translation
        return str(error)
    for explain in (
        _control_flow,
        _array,
        _branch,
        _sparse,
        _shape_from_data,
        _specialized,
        _no_translation,
        _size,
        _slice,
    ):
        if text := explain(error, where):
            return text
    return None


_ARRAY_REQUIRED = (
    r"\.numpy\(\) is not|from dtype\('O'\)|object arrays are not supported|ufunc '\w+' not supported"
    r"|not a storage 'ndarray'|unhashable type: 'ndarray'"
)
"""Messages of PyTorch and NumPy where code requires the numbers of a tensor in an array."""


def _array(error: BaseException, where: Locations) -> str | None:
    if not isinstance(error, TypeError | ValueError | RuntimeError) or not re.search(_ARRAY_REQUIRED, str(error)):
        return None
    return (
        f"{where.module()} computes with the numbers of a tensor outside of PyTorch{_at(line_of_error(error))}, in"
        " NumPy or SciPy, which a graph cannot. Write it with PyTorch's operators, or compute it before the step, if"
        " need be from what the exported model returns, and pass it in as an argument"
    )


_VALUE_REQUIRED = r"(not 'Sym(Bool|Int|Float)'|got Sym(Bool|Int|Float))"
"""Messages of PyTorch and Python where a tensor without values becomes a number or an index."""


def _branch(error: BaseException, where: Locations) -> str | None:
    value_required = isinstance(error, TypeError | IndexError | RuntimeError) and re.search(_VALUE_REQUIRED, str(error))
    if not value_required and not isinstance(error, DataDependentOutputException | GuardOnDataDependentSymNode):
        return None
    operator = f" ({error.func})" if isinstance(error, DataDependentOutputException) else ""
    line = line_of_error(error)
    symbols = error.cond.free_symbols if isinstance(error, GuardOnDataDependentSymNode) else ()
    if line in where.random or any(symbol in where.random for symbol in symbols):
        return (
            f"{where.module()} decides by random numbers of the step what to do{operator}{_at(line)}; a graph cannot"
            " follow such a branch. Switch it off, as by layerdrop=0.0 in the configurations of transformers, or"
            " compute both results and select one with torch.where"
        )
    number = None if line is None else where.number_at(line)
    option = (
        ", nor be specialized to the example here: write it"
        if where.specialize
        else ". With specialize=True the step is that of the example, and refuses numbers that would take another way."
        " Or write it"
    )
    return (
        f"{where.module()} decides by the numbers in a tensor what to do{operator}{_at(line)}"
        f"{'' if number is None else f', by {number} in the example'}; a graph cannot follow such a branch"
        f"{option} with torch.where, or compute what it decides on before the step and pass it in as a number"
    )


def _sparse(error: BaseException, where: Locations) -> str | None:
    if not re.search(r"Sparse\w*TensorImpl|Sparse\w* (layout|\w+ tensors do)|compressed tensor instance", str(error)):
        return None
    return f"{where.module()} has a sparse tensor{_at(line_of_error(error))} that is no matrix of a graph: {REMEDY}"


def _at(line: Line | None) -> str:
    return "" if line is None else f" at {line}"


def _shape_from_data(error: BaseException, where: Locations) -> str | None:
    if not isinstance(error, DynamicOutputShapeException):
        return None
    return (
        f"{where.module()} runs {error.func}{_at(line_of_error(error))}, the shape of whose result depends on the"
        " numbers in a tensor. Use a mask with torch.where instead, so that shapes stay the same"
    )


def _specialized(error: BaseException, where: Locations) -> str | None:
    if "Constraints violated" not in str(error):
        return None
    if found := re.search(
        r"You marked (\S+) as dynamic but your code specialized it to be a constant \((\d+)\)", str(error)
    ):
        if found[2] in ("0", "1"):
            return (
                f"{found[1]} is to be dynamic: give an example in which it is 2 or more, {found[2]} counts as a number"
            )
        if (scripted := where.scripted()) is not None:
            return (
                f"{found[1]} is to be dynamic, but TorchScript, of which '{scripted}' is a program, makes the number"
                f" {found[2]} of it: use the torch.nn.Module it was made from, or let dynamic_shapes not name it"
            )
        return (
            f"{found[1]} is to be dynamic, but the model or loss makes the number {found[2]} of it"
            f"{_restricted(found[1], where)}: by range(), a list times it, a loop over the tensor or over as many"
            " chunks of one, a number in view or reshape, or an array or tensor of that size. Use x.shape[0] as it is,"
            " which functions of numbers of math and NumPy take too, x.numel(), -1, torch.arange, torch.ones in place"
            " of numpy.ones, and torch.vmap or operators on the whole tensor in place of a loop, or let dynamic_shapes"
            " not name it"
        )
    if found := re.search(rf"guard (\d+) <= (\S+) and \S+ <= {LARGEST}\b", str(error)):
        return (
            f"{found[2]} is to be dynamic, but the graph is right only where it is {found[1]} or more"
            f"{_restricted(found[2], where)}. Say so by"
            f" {_bounds(where.sizes.get(found[2], range(int(found[1]), sys.maxsize)), where)}"
        )
    if found := re.search(r"Not all values of (\S+) .*satisfy the generated guard (.*?)\.?$", str(error), re.MULTILINE):
        return holding_where(found[1], found[2], where)
    if found := re.search(r"The values of (\S+) .* and (\S+) .*must always be equal", str(error)):
        return (
            f"{found[1]} and {found[2]} must be equal{_restricted(found[1], where)}: give both the same"
            " torch.export.Dim"
        )
    return f"dynamic_shapes names dimensions that cannot be dynamic: {_first_lines(error)}"


def holding_where(size: str, condition: str, where: Locations, factor: int = 1) -> str:
    """The error message for a graph that a condition on a dynamic size restricts.

    Args:
        size: PyTorch's name of the size, such as x.size()[0].
        condition: as Python's code.
        where: the lines that restrict sizes.
        factor: by which the size is a multiple of the variable of the condition.
    """
    remedy = " Use // or math.floor in place of int(). Or say so" if "trunc" in condition else " Say so"
    is_of_multiples = re.search(r"% \d+\)? == ", condition)  # of which no range consists
    if (valid := where.sizes.get(size)) and not is_of_multiples:
        return (
            f"{size} is to be dynamic, but the graph is right only where {condition}{_restricted(size, where)}.{remedy}"
            f" by {_bounds(valid, where)}"
        )
    divisors = [int(found) for found in re.findall(r"% (\d+)", condition)]
    multiple = factor * math.lcm(*divisors) if divisors else 16
    return (
        f"{size} is to be dynamic, but the graph is right only where {condition}{_restricted(size, where)}.{remedy} by"
        f" min and max of its torch.export.Dim, or by a multiple such as {multiple} *"
        ' torch.export.Dim("s"), or let dynamic_shapes not name it'
    )


def _bounds(valid: range, where: Locations) -> str:
    """What to write for a dimension with these sizes."""
    bounds = [f"min={valid.start}"] * (valid.start > 2) + [f"max={valid.stop - 1}"] * (valid.stop < sys.maxsize)
    specialized = "" if where.specialize else ", by specialize=True for the step to be that of the example"
    return f"{' and '.join(bounds)} of its torch.export.Dim{specialized}, or let dynamic_shapes not name it"


def _size(error: BaseException, where: Locations) -> str | None:
    sizes, names = r"\bSym(Int|Bool|Float)\b|numpy\.object_", r"\b[su]\d+\b"  # in texts of sizes
    said = isinstance(error, TypeError | AttributeError) and re.search(sizes, str(error))
    # A package that requires integers, as einx does of shapes; PyTorch's own errors are about the values of sizes.
    required = isinstance(error, KeyError) or (isinstance(error, ValueError) and not raised_by_library(error))
    if not said and not (required and re.search(names, str(error))):
        return None
    return (
        f"{where.module()} does with a dynamic size what only numbers allow{_at(line_of_error(error))}"
        f" ({_first_lines(error)}): as a key, in an array of NumPy, or where it is asked whether it is an int. Pass"
        " what it computes into the step as an argument, replace a dictionary of results by functools.cache and the"
        " functions of a package that requires integers by PyTorch's, or let dynamic_shapes not name that dimension"
    )


def _slice(error: BaseException, where: Locations) -> str | None:
    """Of a slice such as x[:, 2:3], which has one element only where the size is 3 or more, and is broadcast."""
    found = re.search(r"size of tensor a \((.*)\) must match the size of tensor b \((.*)\) at", str(error))
    ends = [int(end) for end in re.findall(r"\bMin\((\d+), s\d+\)", "" if found is None else f"{found[1]} {found[2]}")]
    if not ends:
        return None
    return (
        f"a slice along a dynamic axis is broadcast{_at(line_of_error(error))}, but may be shorter than it is in the"
        f" example: say by min={max(ends)} of its torch.export.Dim that the axis is long enough, or let dynamic_shapes"
        " not name it"
    )


def _restricted(size: str, where: Locations) -> str:
    line = where.restrictions.get(size)
    return "" if line is None else f" (at {line})"


_UNTRANSLATED = (
    r"No ONNX function found for <OpOverload\(op='([\w.:]+)', overload='\w+'\)>",
    r"(aten::\w+)\S*: attempted to run this operator with Meta tensors",
)
"""Messages of PyTorch for an operator that it cannot export, or not even trace."""


COLLECTIVE = "c10d.", "_c10d_functional."
"""What the names of operators that exchange tensors between processes begin with."""


def _no_translation(error: BaseException, where: Locations) -> str | None:
    for message in _UNTRANSLATED:
        if found := re.search(message, str(error)):
            return untranslated(found[1].replace("::", "."), where)
    return None


def untranslated(operator: str, where: Locations) -> str:
    """The error message for an operator that has no translation to ONNX, such as aten.lgamma."""
    location = where.of(operator)
    line = "" if location.line is None else f"; it is run at {location.line}"
    if operator.startswith(COLLECTIVE):
        return (
            f"{operator} of torch.distributed, which {location.module} needs, exchanges tensors between processes, and"
            f" a graph has one{line}. Leave it out, as in one process it changes nothing; several processes train on"
            " one step as docs/data-parallel.md describes"
        )
    return (
        f"{operator}, which {location.module} needs, has no translation to ONNX{line}. Replace what it computes by"
        " other operators, or leave it out of the step; the table of what works is docs/capture.md"
    )
