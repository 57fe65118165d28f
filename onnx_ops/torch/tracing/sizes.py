"""Dynamic sizes in a trace: those derived from others, len() of tensors, and the lines of code that restrict them."""

from __future__ import annotations

import builtins
import contextlib
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any
from unittest import mock

import sympy
import torch
import torch.nn.functional as functional
from torch import Tensor, _meta_registrations
from torch._dynamo.source import ConstantSource
from torch._subclasses import fake_impls
from torch.fx.experimental import _config as symbolic_shapes_config
from torch.fx.experimental.sym_node import SymNode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    ShapeGuard,
    StrictMinMaxConstraint,
    guard_or_false,
    guard_or_true,
)
from torch.utils._sympy.functions import FloorDiv, Max, Min, Mod
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.printers import PythonPrinter
from torch.utils._sympy.value_ranges import ValueRanges

from onnx_ops.torch.base.arguments import Dimension
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.base.sizes import Size, in_example
from onnx_ops.torch.tracing.batching import symbolic_batches
from onnx_ops.torch.tracing.certainty import is_certain
from onnx_ops.torch.tracing.frames import Line, is_called_by_layer, is_called_by_model, is_called_by_operator
from onnx_ops.torch.tracing.immutable_types import replaced_method
from onnx_ops.torch.tracing.importers import Importers
from onnx_ops.torch.tracing.mathematics import symbolic_mathematics

LARGEST = 2**48
"""Bound on dynamic sizes without one: multiples of them are integers of 64 bits, as PyTorch requires of all sizes."""


def allowed_sizes(dim: Dimension, least: int) -> ValueRanges[sympy.Expr]:
    """The sizes that a dimension allows, `least` and more."""
    most = getattr(dim, "max", None)
    if most in (None, int_oo):
        most = dim.fn(LARGEST) if hasattr(dim, "root") else LARGEST
    return ValueRanges(max(getattr(dim, "min", None) or least, least), most)


class RecordedShapes(ShapeEnv):
    """A ShapeEnv without guards that always hold, which records the line of the model or loss that others are of.

    Args:
        line: returns the line that is running, or whose gradient is.
        ways: conditions that have these values in place of those in the example; guards then narrow no ranges.
        settings: of ShapeEnv.

    Attributes:
        asked: the conditions that guards are of, by the expressions of these, and their values.
        given: the guards that no code is the reason of, but equal dimensions of inputs.
    """

    def __init__(
        self,
        line: Callable[[], Line | None],
        ways: Mapping[sympy.Basic, bool] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(**settings)
        self._line, self._ways = line, ways
        self.given: list[ShapeGuard] = []
        self.asked: dict[sympy.Basic, tuple[sympy.Basic, bool]] = {}
        self._lines: list[tuple[sympy.Basic, Line | None]] = []
        self._notes = True
        self._known: dict[tuple[sympy.Basic, frozenset[sympy.Symbol]], bool] = {}
        self.decided_at_one: dict[frozenset[sympy.Symbol], Line | None] = {}
        """Sizes with which code does something else if they are 1, those of a set if all of them are, with the line."""
        self.never_empty: set[sympy.Symbol] = set()
        """Sizes for which PyTorch raises an error if they are 0."""
        self.possibly_zero: set[sympy.Symbol] = set()
        """Sizes of 0 that a step takes."""
        self._derived: dict[sympy.Symbol, set[sympy.Basic]] = {}

    def evaluate_expr(self, *args: Any, **kwargs: Any) -> sympy.Basic:
        if (way := self._way(args[0])) is not None:
            return sympy.true if way else sympy.false
        before, ranges = len(self.guards), dict(self.var_to_range)  # which a guard narrows
        try:
            value = super().evaluate_expr(*args, **kwargs)
            self._note_value(args[0], value)
            if value in (sympy.true, sympy.false):
                self.asked.update((guard.expr, (args[0], value is sympy.true)) for guard in self.guards[before:])
            return value
        finally:
            if len(self.guards) > before:
                self.guards[before:] = [g for g in self.guards[before:] if not is_certain(g.expr, ranges)]
                line = self._line()
                self._lines += ((guard.expr, line) for guard in self.guards[before:])

    def _way(self, condition: sympy.Basic) -> bool | None:
        """The value that a condition is to have, also where the same one is written otherwise; None for any other."""
        if self._ways is None:
            return None
        if not isinstance(condition, sympy.core.relational.Relational):
            return self._ways.get(condition)
        for same in (condition, condition.reversed):
            for written, negated in ((same, False), (same.negated, True)):
                if written in self._ways:
                    return self._ways[written] is not negated
        return None

    @property
    def narrows(self) -> bool:
        """Whether guards narrow the ranges of sizes."""
        return self._ways is None

    def _refine_ranges(self, expr: sympy.Basic) -> None:
        if self.narrows:
            super()._refine_ranges(expr)

    def derive(self, symbol: sympy.Symbol, expression: sympy.Expr) -> None:
        """Replace the symbol of a size by an expression in another one, such as 2 * N."""
        self._derived[symbol] = expression.free_symbols
        self._set_replacement(symbol, expression, "derived dimension")

    @contextlib.contextmanager
    def of_pytorch(self) -> Iterator[None]:
        """A context in which it is PyTorch's C++ code that evaluates conditions."""
        with mock.patch.object(self, "_notes", False):
            yield

    def from_one(self) -> dict[sympy.Symbol, ValueRanges[sympy.Expr]]:
        """The ranges of symbols, with 1 for sizes that PyTorch takes to be 2 or more."""
        return {s: ValueRanges(1, r.upper) if self._may_be_one(s) else r for s, r in self.var_to_range.items()}

    def may_be_empty(self, size: sympy.Expr) -> bool:
        """Whether a size, in terms of dynamic ones, may be 0 or less, also if one of these is 0."""
        positive = sympy.Ge(size, 1)
        known = positive is sympy.true or self._maybe_evaluate_static(positive) is sympy.true
        if not known and not is_certain(positive, self.var_to_range):
            return True
        return not all(_is_positive_at_0(size, symbol) for symbol in size.free_symbols & self.possibly_zero)

    def _may_be_one(self, symbol: sympy.Symbol) -> bool:
        """Whether a size that may be 1 is taken to be 2 or more; sizes that depend on data have other ranges."""
        return symbol in self.backed_var_to_val and symbol in self.var_to_range and self.var_to_range[symbol].lower == 2

    def _note_value(self, expression: sympy.Basic, value: sympy.Basic) -> None:
        """Note a condition of the model or loss, or a number that is made of sizes, that is another one for sizes of 1.

        PyTorch's own code branches on sizes of 1 too, but computes the same.
        """
        if not any(map(self._may_be_one, expression.free_symbols)):
            return
        if value not in (sympy.true, sympy.false):
            self.note(sympy.Eq(expression, value))
        elif self._notes and is_called_by_model():
            self.note(expression if value is sympy.true else sympy.Not(expression))

    def note(self, condition: sympy.Basic) -> None:
        """Note sizes that may be 1 and for which a condition then does not hold, which does if they are larger."""
        symbols = frozenset(symbol for symbol in condition.free_symbols if self._may_be_one(symbol))
        for ones in {frozenset([symbol]) for symbol in symbols} | ({symbols} if symbols else set()):
            known = condition, ones
            if known not in self._known:
                self._known[known] = self._holds_with(dict.fromkeys(ones, sympy.Integer(1)), condition)
            if not self._known[known]:
                self.decided_at_one.setdefault(ones, self._line())

    def require(self, size: sympy.Expr, least: sympy.Expr) -> None:
        """Note sizes of 0 and 1 with which another one, in terms of them, is so small that PyTorch raises an error."""
        self.note(sympy.Ge(size, least))
        more = size - least
        self.never_empty.update(symbol for symbol in more.free_symbols if _is_refused_at_0(more, symbol))

    def _holds_with(self, sizes: Mapping[sympy.Symbol, sympy.Integer], condition: sympy.Basic) -> bool:
        try:
            return self._holds(condition.xreplace(sizes))
        except ZeroDivisionError:  # of sizes // (size // 2)
            return False

    def _holds(self, condition: sympy.Basic) -> bool:
        if condition in (sympy.true, sympy.false):
            return condition is sympy.true
        return self._maybe_evaluate_static(condition) is sympy.true or is_certain(condition, self.from_one())

    def line_of(self, sizes: Iterable[torch.SymInt]) -> Line | None:
        """The first line that restricts sizes, which are equal: that makes a number of them if there is one."""
        symbols = {size.node._expr for size in sizes}
        own = symbols.union(*(self._derived.get(symbol, set()) for symbol in symbols))
        restricting = [(expr, line) for expr, line in self._lines if line and own & expr.free_symbols]
        fixing = (line for expr, line in restricting if expr.free_symbols <= own and isinstance(expr, sympy.Eq))
        return next(fixing, restricting[0][1] if restricting else None)


class Roots:
    """The sizes N of dimensions such as 2 * Dim("N").

    Those are iterated over for which no input has a dimension Dim("N").

    Args:
        shapes: the symbols of the trace.
        known: the sizes of dimensions of inputs, by the names of the dimensions.
    """

    def __init__(self, shapes: RecordedShapes, known: Mapping[str, torch.SymInt]) -> None:
        self._shapes, self._known = shapes, known
        self._symbols: dict[str, sympy.Symbol] = {}

    def __iter__(self) -> Iterator[sympy.Symbol]:
        return iter(self._symbols.values())

    def has(self, dim: Dimension) -> bool:
        """Whether a dimension is a multiple of one of these sizes."""
        return hasattr(dim, "root") and dim.root.__name__ in self._symbols

    def symbol(self, dim: Dimension) -> sympy.Symbol:
        return self._symbols[dim.root.__name__]

    def conditions(self, others: Mapping[sympy.Symbol, str]) -> Iterator[tuple[str, str]]:
        """Conditions on these sizes that the graph requires, as Python's code, each with the name of a dimension in it.

        `others` has the names of the sizes of inputs.
        PyTorch's ShapeEnv has them too, and checks those on sizes of inputs only, and whether a size is a number.
        """
        replaced = self._shapes.replacements
        names = {s: name for name, s in self._symbols.items() if not replaced.get(s, s).is_number}
        for guard in self._shapes.guards:
            for symbol in sorted(names.keys() & guard.expr.free_symbols, key=str):
                named = guard.expr.xreplace({each: sympy.Symbol(name) for each, name in {**others, **names}.items()})
                yield names[symbol], PythonPrinter().doprint(named)

    def derive(self, sizes: Iterable[tuple[torch.SymInt, torch.export.Dim]]) -> None:
        """Replace sizes in the trace by expressions in their roots, so that conditions such as divisibility are known.

        Raises:
            CaptureError: the size in the example is no value of the dimension.
        """
        for size, dim in sizes:
            symbol, hint = size.node.expr, size.node.hint
            offset = int(dim.fn(0))
            root, rest = divmod(hint - offset, int(dim.fn(1)) - offset)
            if rest:
                raise CaptureError(f"a size of {hint} in the example is not {dim.__name__} for any {dim.root.__name__}")
            known = self._known.get(dim.root.__name__)
            if known is None:
                if dim.root.__name__ not in self._symbols:
                    self._symbols[dim.root.__name__] = self._made(dim.root, root)
                self._shapes.derive(symbol, dim.fn(self.symbol(dim)))
            elif known.node.hint == root:
                self._shapes.derive(symbol, dim.fn(known.node.expr))

    def _made(self, root: torch.export.Dim, value: int) -> sympy.Symbol:
        return self._shapes.create_symbol(
            value,
            source=ConstantSource(root.__name__),
            dynamic_dim=DimDynamic.DYNAMIC,
            constraint_dim=StrictMinMaxConstraint(vr=allowed_sizes(root, least=1), warn_only=False),
            do_not_specialize_zero_one=True,  # 4 * N is no size of 1 where N is 1
        )


def _is_refused_at_0(more: sympy.Expr, symbol: sympy.Symbol) -> bool:
    """Whether a size is less than required, by a negative number of more, where another one is 0."""
    try:
        return bool(more.xreplace({symbol: sympy.S.Zero}).is_negative)
    except ZeroDivisionError:  # of size // symbol, where Python raises it too
        return True


def _is_positive_at_0(size: sympy.Expr, symbol: sympy.Symbol) -> bool:
    try:
        return bool(size.xreplace({symbol: sympy.S.Zero}).is_positive)
    except ZeroDivisionError:  # of size // symbol
        return False


@contextlib.contextmanager
def symbolic_sizes() -> Iterator[None]:
    """A context in which len() of a tensor is its dynamic size, and functions of PyTorch take such sizes.

    Python's own len() makes a number of the size, PyTorch's attention takes no SymBool, such as
    `is_causal=x.shape[1] > 1`, torch.func and torch.Size.numel() make numbers of sizes, and so does the package
    opt_einsum.
    """
    with contextlib.ExitStack() as stack:
        if torch.backends.opt_einsum.is_available():
            contract = torch.backends.opt_einsum.get_opt_einsum().contract  # a function, of the module of that name
            module = sys.modules[contract.__module__]
            paths = _Paths(vars(module)["contract_path"])
            stack.enter_context(mock.patch.object(torch.backends.opt_einsum, "get_opt_einsum", return_value=paths))
            stack.enter_context(mock.patch.object(module, "contract_path", paths.contract_path))
        stack.enter_context(mock.patch.object(builtins, "len", _length))
        stack.enter_context(replaced_method(torch.Size, "numel", _numel))
        stack.enter_context(symbolic_batches())
        stack.enter_context(symbolic_mathematics())
        stack.enter_context(_IMPORTERS.replaced({ATTENTION: _attention}))
        yield


@contextlib.contextmanager
def size_oblivious() -> Iterator[None]:
    """PyTorch adds no guards that dynamic sizes, and those computed from them, are neither 0 nor 1.

    A graph that is valid for all other sizes is valid for these. Nor does it add guards of how tensors are stored.
    """
    with (
        symbolic_shapes_config.patch(backed_size_oblivious=True),
        mock.patch.object(SymNode, "guard_bool", _condition),
        mock.patch.object(fake_impls, "_compute_slice_index", _slice_index),
        mock.patch.object(torch, "_debug_has_internal_overlap", _internal_overlap),
        mock.patch.object(_meta_registrations, "_exec_fft", _transformed),
    ):
        yield


@dataclass(frozen=True)
class _Paths:
    """The function of opt_einsum that finds the order of the products of an einsum, by the sizes of the example.

    PyTorch calls it for its own einsum, and opt_einsum for its own functions, as tensorly uses them.
    """

    function: Callable[..., Any]

    def contract_path(self, subscripts: str | Tensor, *operands: Any, shapes: bool = False, **options: Any) -> Any:
        if not isinstance(subscripts, str):
            return self.function(subscripts, *operands, shapes=shapes, **options)
        given = operands if shapes else [operand.shape for operand in operands]
        found = [tuple(map(in_example, shape)) for shape in given]
        return self.function(subscripts, *found, shapes=True, **options)


ATTENTION = "scaled_dot_product_attention"
_len = builtins.len
_guard_bool = SymNode.guard_bool
_debug_has_internal_overlap = torch._debug_has_internal_overlap
_compute_slice_index = fake_impls._compute_slice_index
_scaled_dot_product_attention = functional.scaled_dot_product_attention
# In its own module PyTorch looks up what it passes to __torch_function__.
_IMPORTERS = Importers({ATTENTION: _scaled_dot_product_attention}, torch._C._nn)


def _length(container: Sized, /) -> Size:
    if isinstance(container, torch.Tensor) and container.dim() and isinstance(container.shape[0], torch.SymInt):
        return container.shape[0]
    return _len(container)


def _numel(shape: torch.Size) -> Size:
    return math.prod(shape)


def _condition(node: SymNode, file: str, line: int) -> bool:
    """The value of a condition on sizes, which becomes a guard.

    Not if PyTorch's C++ code compares a size with 0 or 1, as that of a reshape does to find out whether its result is a
    view, and the gradient of rfft to find out whether to pad. Nor if the code of an operator compares a size that
    depends on data with 0 or 1. In the code of layers that becomes a condition of the step, as batch norm refuses one
    row. Where either compares one with another size, as losses do with that of their target, they are equal, which
    becomes a condition too.
    """
    condition, in_code_of_torch = node.expr, file.endswith((".h", ".cpp"))
    if not node.has_hint():
        by_operator = in_code_of_torch or is_called_by_operator()
        if by_operator or is_called_by_layer():
            value = _of_large_sizes(condition, node.shape_env)
            if value is None:
                return _of_large_or_equal_sizes(node, file, line)
            return value if by_operator else _required(node, value)
    if in_code_of_torch and isinstance(condition, sympy.Rel) and node.has_hint():
        if isinstance(condition, sympy.Eq | sympy.Ne) and is_of_0_or_1(condition, node.shape_env.var_to_range):
            return (guard_or_false if isinstance(condition, sympy.Eq) else guard_or_true)(torch.SymBool(node))
        above = condition.rel_op == ">" and condition.rhs in (0, 1)
        if above and is_certain(condition.lhs >= condition.rhs, node.shape_env.var_to_range):
            return True
    if in_code_of_torch:
        with node.shape_env.of_pytorch():
            return _guard_bool(node, file, line)
    return _guard_bool(node, file, line)


def _of_large_sizes(condition: sympy.Basic, shapes: ShapeEnv) -> bool | None:
    """The value for sizes from 2 on of a condition that compares a sum of products of sizes with 0 or 1; else None.

    Quotients, as of a reshape, and Max(0, ...), as the number of differences between neighbours, count as sizes.
    """
    if not isinstance(condition, sympy.Rel) or condition.rhs not in (0, 1):
        return None
    if not condition.free_symbols <= shapes.size_like | shapes.backed_var_to_val.keys():
        return None
    derived = (atom for atom in condition.lhs.atoms(FloorDiv, Max) if isinstance(atom, FloorDiv) or 0 in atom.args)
    number = condition.lhs.xreplace({size: sympy.Dummy() for size in derived})
    sizes = number.free_symbols
    if not number.is_polynomial(*sizes) or any(c.is_negative for c in sympy.Poly(number, *sizes).coeffs()):
        return None
    return isinstance(condition, sympy.Ne | sympy.StrictGreaterThan | sympy.GreaterThan)


def _of_large_or_equal_sizes(node: SymNode, file: str, line: int) -> bool:
    """The value of a condition for sizes from 2 on; those that may differ have to be equal."""
    try:
        return bool(node.guard_size_oblivious(file, line))
    except GuardOnDataDependentSymNode:
        if not isinstance(node.expr, sympy.Eq | sympy.Ne) or {0, 1} & set(node.expr.args):
            raise
    return _required(node, isinstance(node.expr, sympy.Eq))


def _required(node: SymNode, value: bool) -> bool:
    """The value of a condition, which becomes a condition of the step."""
    torch._check(torch.SymBool(node) if value else torch.sym_not(torch.SymBool(node)))
    return value


def is_of_0_or_1(condition: sympy.Rel, ranges: Mapping[sympy.Symbol, ValueRanges[sympy.Expr]]) -> bool:
    """Whether a size is compared with 0 or 1, or strides that are equal where a size is 1, as 8 * size with 8.

    The stride of chunks of 8 rows is a multiple of 8 too where the rows are padded to one.
    """
    stride, rows = condition.args
    if rows in (0, 1):
        return True
    if not (rows.is_Integer and rows > 0):
        return False
    factors = sympy.expand(stride / rows).as_coefficients_dict().values()
    return all(factor.is_Integer for factor in factors) or is_certain(sympy.Eq(Mod(stride, rows), 0), ranges)


def _slice_index(size: Size, index: Size) -> Size | None:
    """The place of an element from the start, which is a guard where sizes decide from which end it is counted.

    If it is not to add guards, PyTorch takes the place for a number that depends on data.
    """
    found = _compute_slice_index(size, index)
    if found is None and all(isinstance(each, int) or each.node.has_hint() for each in (size, index)):
        with symbolic_shapes_config.patch(backed_size_oblivious=False):
            found = _compute_slice_index(size, index)
    if isinstance(size, torch.SymInt) and isinstance(index, int) and found is not None:
        place = Min(index, size.node.expr) if index >= 0 else Max(size.node.expr + index, 0)
        size.node.shape_env.note(sympy.Eq(found.node.expr if isinstance(found, torch.SymInt) else found, place))
    return found


def _internal_overlap(tensor: Tensor) -> int:
    """Whether elements of a tensor that is written to are the same: 1 if so, 2 if that is not known for all sizes."""
    if not any(isinstance(size, torch.SymInt) for size in (*tensor.shape, *tensor.stride())):
        return _debug_has_internal_overlap(tensor)
    strides = [
        stride
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
        if not (isinstance(size, int) and size == 1)
    ]
    return 1 if any(isinstance(stride, int) and stride == 0 for stride in strides) else 2


def _transformed(out: Tensor, self: Tensor, out_sizes: Sequence[int], dim: Sequence[int], *, forward: bool) -> Tensor:
    """The result of a Fourier transform along the axes `dim`, in PyTorch's order of axes in memory.

    PyTorch's own function resizes `out`, which compares sizes, and sorts axes by strides.
    """
    strides = [in_example(stride) for stride in self.stride()]
    batch = sorted((axis for axis in range(self.dim()) if axis not in dim), key=lambda axis: -strides[axis])
    order = [*batch, *dim]
    return out.new_empty([out_sizes[axis] for axis in order]).permute([order.index(axis) for axis in range(self.dim())])


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool | torch.SymBool = False,
    **options: Any,
) -> Tensor:
    return _scaled_dot_product_attention(query, key, value, attn_mask, dropout_p, bool(is_causal), **options)
