"""The control flow operators of PyTorch, written in other operators where a step is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._higher_order_ops import scan as torch_scan
from torch._higher_order_ops.associative_scan import _interleave
from torch._higher_order_ops.associative_scan import generic_associative_scan as torch_associative_scan
from torch._higher_order_ops.map import map as torch_map
from torch.autograd.function import FunctionCtx
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import PyTree, tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.sizes import Size
from onnx_ops.torch.tracing.frames import line_now


@contextlib.contextmanager
def written_control_flow() -> Iterator[None]:
    """A context in which the functions of this module run in place of PyTorch's.

    PyTorch compiles the functions that it is given, which a trace cannot follow. Modules import these functions under
    names of their own, so that their code is replaced.
    """
    before = {function: function.__code__ for function in CODE}
    try:
        for function, code in CODE.items():
            function.__code__ = code
        yield
    finally:
        for function, code in before.items():
            function.__code__ = code


Function = Callable[..., Any]


class _Gate(torch.autograd.Function):
    """A tensor whose gradient counts only where a condition holds: NaN and infinity do not pass otherwise."""

    @staticmethod
    def forward(ctx: FunctionCtx, tensor: Tensor, condition: Tensor) -> Tensor:
        ctx.save_for_backward(condition)
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        (condition,) = ctx.saved_tensors
        return torch.where(condition, grads[0], 0), None


_APPLY = vars(torch.autograd.Function)["apply"]
"""The class method, of which PyTorch's versions have different kinds."""


def _apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    return _APPLY.__get__(None, cls)(*args, **kwargs)


class _Branch(TorchFunctionMode):
    """A mode in which a branch runs: gates the tensors that it does not make itself.

    Args:
        taken: () bool, whether the result of the branch is selected.
    """

    def __init__(self, taken: Tensor) -> None:
        super().__init__()
        self._taken = taken
        self._made: dict[int, Tensor] = {}
        self._gates: dict[int, Tensor] = {}
        self.given: dict[int, tuple[Tensor, int]] = {}
        """The tensors that it does not make, by their ids, and their versions before."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args, kwargs = tree_map_only(Tensor, self._gated, (args, kwargs or {}))
        result = func(*args, **kwargs)
        self._made.update((id(leaf), leaf) for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def _gated(self, tensor: Tensor) -> Tensor:
        if id(tensor) in self._made:
            return tensor
        if id(tensor) not in self.given:
            self.given[id(tensor)] = tensor, tensor._version
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        if id(tensor) not in self._gates:
            gate = _apply(_Gate, tensor, self._taken)
            self._gates[id(tensor)] = self._made[id(gate)] = gate
        return self._gates[id(tensor)]

    def run(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        def gated(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
            return _apply(cls, *tree_map_only(Tensor, self._gated, args), **kwargs)

        with mock.patch.object(torch.autograd.Function, "apply", classmethod(gated)), self:
            result = function(*operands)
        if any(tensor._version != version for tensor, version in self.given.values()):
            raise CaptureError(
                f"a branch of torch.cond{_place()} writes to a tensor that it does not make,"
                " such as the statistics of batch norm; return the new values, and write them after the call"
            )
        return result

    def trained(self) -> set[int]:
        """The ids of the tensors with a gradient."""
        return {key for key, (tensor, _) in self.given.items() if tensor.requires_grad}


def _kinds(result: PyTree) -> PyTree:
    """The dtypes and shapes of the tensors in a result."""
    return tree_map_only(Tensor, lambda tensor: (tensor.dtype, tuple(tensor.shape)), result)


def _place() -> str:
    line = line_now()
    return "" if line is None else f" at {line}"


def cond(
    pred: Tensor | torch.SymBool | float, true_fn: Function, false_fn: Function, operands: Sequence[Any] = ()
) -> Any:
    """As torch.cond: runs both branches and selects the results of one; the gradients of the other one are 0.

    A condition on dynamic sizes restricts these, as that of an `if`, where the branches have gradients of different
    tensors: PyTorch then runs one branch alone, and tensors of the other one have no gradient.
    """
    if isinstance(pred, bool | int | float):
        return (true_fn if pred else false_fn)(*operands)
    of_sizes = not isinstance(pred, Tensor)
    taken = torch.tensor(pred) if of_sizes else pred.reshape(()) != 0
    chosen, other = _Branch(taken), _Branch(~taken)
    results = chosen.run(true_fn, operands), other.run(false_fn, operands)
    (leaves, structure), (others, _) = map(tree_flatten, results)
    if _kinds(results[0]) != _kinds(results[1]) or (of_sizes and chosen.trained() != other.trained()):
        if of_sizes:
            return results[0] if pred else results[1]
        raise CaptureError(
            f"the branches of torch.cond{_place()} return {_kinds(results[0])} and {_kinds(results[1])}, expected the"
            " same dtypes and shapes"
        )
    selected = [
        torch.where(taken, leaf, alternative) if isinstance(leaf, Tensor) else leaf
        for leaf, alternative in zip(leaves, others, strict=True)
    ]
    return tree_unflatten(selected, structure)


def while_loop(cond_fn: Function, body_fn: Function, carried_inputs: Sequence[Any]) -> tuple[Any, ...]:
    """As torch.while_loop: a loop of Python, whose condition is evaluated as that of an `if`."""
    carried = tuple(carried_inputs)
    if not (goes_on := cond_fn(*carried)):  # the gradients of all tensors of a body that does not run are 0
        return tuple(cond(goes_on, body_fn, lambda *kept: kept, carried))
    while goes_on:
        carried = tuple(body_fn(*carried))
        goes_on = cond_fn(*carried)
    return carried


def scan(
    combine_fn: Function, init: PyTree, xs: PyTree, *, dim: int = 0, reverse: bool = False
) -> tuple[PyTree, PyTree]:
    """As torch._higher_order_ops.scan: a loop of Python over the slices along an axis."""
    leaves, structure = tree_flatten(xs)
    if not leaves:
        return init, []
    axis = dim % leaves[0].dim()
    rows = zip(*(leaf.unbind(axis) for leaf in leaves), strict=True)
    carry, results = init, []
    for row in reversed(list(rows)) if reverse else rows:
        carry, result = combine_fn(carry, tree_unflatten(row, structure))
        results.append(result)
    if reverse:
        results.reverse()
    return carry, tree_map(lambda *each: torch.stack(each, axis if axis <= each[0].dim() else 0), *results)


def mapped(f: Function, xs: PyTree, *args: Any) -> PyTree:
    """As torch._higher_order_ops.map: a loop of Python over the rows of tensors."""
    leaves, structure = tree_flatten(xs)
    results = [f(tree_unflatten(row, structure), *args) for row in zip(*leaves, strict=True)]
    return tree_map(lambda *each: torch.stack(each), *results)


def generic_associative_scan(
    operator: Function, leaves: list[Tensor], dim: int = 0, additional_inputs: Sequence[Tensor] = ()
) -> list[Tensor]:
    """As PyTorch's, which combines pairs of neighbours, then pairs of these; without the numbers of dynamic sizes."""
    count = leaves[0].shape[dim]
    if count < 2:
        return leaves

    def every_second(tensors: Sequence[Tensor], start: int, end: Size) -> list[Tensor]:
        return [torch.ops.aten.slice(tensor, dim, start, end, 2) for tensor in tensors]

    pairs = operator(*every_second(leaves, 0, count - 1), *every_second(leaves, 1, count), *additional_inputs)
    odd = generic_associative_scan(operator, tree_leaves(pairs), dim, additional_inputs)
    even = [leaf.narrow(dim, 0, 1) for leaf in leaves]
    if count > 2:
        before = [each.narrow(dim, 0, (count - 1) // 2) for each in odd]
        others = tree_leaves(operator(*before, *every_second(leaves, 2, count), *additional_inputs))
        even = [torch.cat([first, other], dim) for first, other in zip(even, others, strict=True)]
    return [_interleave(*each, dim=dim) for each in zip(even, odd, strict=True)]


def _calling(function: Function) -> CodeType:
    """Code that calls a function, whose globals may be those of any module."""

    def call(*args: Any, **options: Any) -> Any:
        called: Any = "the function"
        return called(*args, **options)

    constants = tuple(function if constant == "the function" else constant for constant in call.__code__.co_consts)
    return call.__code__.replace(co_consts=constants)


CODE = {
    torch.cond: _calling(cond),
    torch.while_loop: _calling(while_loop),
    torch_scan: _calling(scan),
    torch_associative_scan: _calling(generic_associative_scan),
    torch_map: _calling(mapped),
}
