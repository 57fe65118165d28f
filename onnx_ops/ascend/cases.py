"""Rows of CANN's tables of cases (ttk_kernel_*.csv), run with the kernels of the corresponding ops.

Source of the format: the tables in gitcode.com/cann/ops-nn, 9.1, and `isclose_compare` in its
matmul/common/tests/st/arch35/matmul_golden_util.py for their tolerances.
"""

from __future__ import annotations

import ast
import csv
import functools
import inspect
import math
import runpy
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ml_dtypes
import numpy as np

from onnx_ops.arrays.comparison import Comparison, compare
from onnx_ops.arrays.execution import run
from onnx_ops.ascend.golden import definition_name, golden_source, kernels
from onnx_ops.core.errors import Error
from onnx_ops.core.op import Op
from onnx_ops.core.types import shape_text

READ = (
    "testcase_name",
    "op_name",
    "input_shapes",
    "input_dtypes",
    "output_shapes",
    "output_dtypes",
    "attributes",
    "input_data_ranges",
    "precision_tolerances",
    "absolute_precision",
    "is_enabled",
)
"""Columns that are read; those after the first four may be missing."""
NEEDED = READ[:4]
OF_DEVICES = (
    "network_name",
    "input_formats",
    "input_ori_shapes",
    "input_ori_formats",
    "output_formats",
    "output_ori_shapes",
    "output_ori_formats",
    "output_inplace_indexes",
    "output_shape_unknown_indexes",
    "remark",
    "soc_series",
    "priority",
    "dump_file_prefix",
    "manual_input_binaries",
    "manual_golden_binaries",
)
"""Columns about devices and files, which are known, but have no effect here."""
PRIVATE = ("manual_input_binaries", "manual_golden_binaries")
"""Those whose rows cannot be run if they are not empty."""
LOOSE, TIGHT = 1e-3, 1e-4
"""Tolerances where a table has none: TIGHT for float32."""
ABSOLUTE = 1e-8
NAMED = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float": np.dtype(np.float32), "double": np.dtype(np.float64)}
"""Dtypes whose names NumPy does not know, or takes for others."""

Status = Literal["pass", "fail", "refused", "skipped"]
Golden = Callable[..., Any]


class CaseTableError(Error, ValueError):
    """A table, a row or a golden file that cannot be read."""


@dataclass(frozen=True)
class CaseResult:
    """A row of a table.

    Attributes:
        name: testcase_name.
        kernel: op_name.
        status: "pass"; "fail" for results beyond the tolerances, or of another shape or dtype; "refused" where the op
            raises an error; "skipped" for a row that is not run.
        reason: of all but "pass".
        outputs: the results beside the golden ones.
        unknown: attributes of the row that the golden function does not have.
    """

    name: str
    kernel: str
    status: Status
    reason: str = ""
    outputs: tuple[Comparison, ...] = ()
    unknown: tuple[str, ...] = ()


def unknown_columns(table: Path) -> list[str]:
    """The columns of a table that are not known, and so have no effect."""
    return [column for column in _rows(table)[0] if column not in (*READ, *OF_DEVICES)]


def run_cases(table: Path, *, golden: Path | None = None, most_elements: int | None = None) -> Iterator[CaseResult]:
    """Run the rows of a table with the kernels, and compare the results with golden ones.

    Inputs are random numbers in the ranges of the row, seeded by its name.

    Args:
        table: a file ttk_kernel_*.csv.
        golden: a golden file of the operator; without it, the golden functions of this package.
        most_elements: rows with more elements in their inputs and outputs are skipped.

    Raises:
        CaseTableError: a table without the columns that a row needs, or a file without golden functions.
    """
    columns, rows = _rows(table)
    missing = [column for column in NEEDED if column not in columns]
    if missing:
        raise CaseTableError(f"{table} has no columns {', '.join(missing)}, expected those of CANN's tables of cases")
    of_file = None if golden is None else _golden_file(golden)
    for row in rows:
        name, kernel = row["testcase_name"], row["op_name"]
        op = kernels().get(kernel)
        if op is None:
            yield CaseResult(name, kernel, "skipped", f"no op corresponds to {kernel}")
            continue
        if row.get("is_enabled", "").strip().lower() in ("false", "0"):
            yield CaseResult(name, kernel, "skipped", "not enabled")
            continue
        private = [column for column in PRIVATE if row.get(column, "").strip() not in ("", "()", "[]")]
        if private:
            yield CaseResult(name, kernel, "skipped", f"needs files: {', '.join(private)}")
            continue
        try:
            yield _run(_Case.read(row), op, of_file, most_elements)
        except CaseTableError as problem:
            yield CaseResult(name, kernel, "skipped", str(problem))
        except Error as refusal:
            yield CaseResult(name, kernel, "refused", str(refusal))


def _rows(table: Path) -> tuple[list[str], list[dict[str, str]]]:
    """The columns and the rows."""
    with table.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file, restval="")
        columns = list(reader.fieldnames or ())
        return columns, [row for row in reader if any(row[column] for column in columns)]


def _golden_file(path: Path) -> Mapping[str, Golden]:
    """The functions of a golden file by kernel."""
    try:
        namespace = runpy.run_path(str(path))
        names: Mapping[str, str] = namespace["__golden__"]["kernel"]
        return {kernel: namespace[name] for kernel, name in names.items()}
    except Exception as problem:  # the file is a program
        raise CaseTableError(f"{path} has no golden functions: {type(problem).__name__}: {problem}") from problem


@dataclass(frozen=True)
class _Case:
    """A row, read. ranges: for each input (lowest, highest), or values to choose from; None: no range."""

    name: str
    kernel: str
    shapes: Sequence[tuple[int, ...] | None]
    dtypes: Sequence[str]
    out_shapes: Sequence[tuple[int, ...]] | None
    out_dtypes: Sequence[str] | None
    attributes: Mapping[str, Any]
    ranges: Sequence[tuple[float, ...] | None]
    tolerances: Sequence[tuple[float, float]]
    absolute: float

    @classmethod
    def read(cls, row: Mapping[str, str]) -> _Case:
        shapes = [None if shape is None else tuple(shape) for shape in _value(row, "input_shapes")]
        ranges = _value(row, "input_data_ranges") or [None]
        if not isinstance(ranges[0], list | tuple | None):
            ranges = [ranges]  # of all inputs
        if len(ranges) == 1:
            ranges = [*ranges] * len(shapes)
        tolerances = _value(row, "precision_tolerances") or ()
        if tolerances and not isinstance(tolerances[0], list | tuple):
            tolerances = [tolerances]
        case = cls(
            row["testcase_name"],
            row["op_name"],
            shapes,
            _value(row, "input_dtypes"),
            _value(row, "output_shapes"),
            _value(row, "output_dtypes"),
            _value(row, "attributes") or {},
            ranges,
            tolerances,
            _value(row, "absolute_precision") or ABSOLUTE,
        )
        counts = len(case.shapes), len(case.ranges)
        if len(case.dtypes) < counts[0] or counts[1] < counts[0]:
            raise CaseTableError(
                f"{len(case.dtypes)} input_dtypes, {counts[1]} input_data_ranges, expected {counts[0]}, as input_shapes"
            )
        return case

    def inputs(self, names: Sequence[str]) -> list[np.ndarray | None]:
        """Random inputs, but for those whose values are among the attributes."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        made: list[np.ndarray | None] = []
        for name, shape, dtype, limits in zip(names, self.shapes, self.dtypes, self.ranges, strict=False):
            if shape is None:
                made.append(None)
                continue
            kind = _dtype(dtype)
            array = _random(rng, shape, kind, limits)
            if name in self.attributes:
                array = np.array(self.attributes[name]).astype(kind).reshape(shape)
            made.append(array)
        return made

    def tolerance(self, index: int, dtype: np.dtype) -> tuple[float, float, float]:
        """Relative and absolute tolerance of an output, and the ratio of elements that may exceed them."""
        if dtype.kind in "biu":
            return 0.0, 0.0, 0.0
        if self.tolerances:
            relative, ratio = self.tolerances[min(index, len(self.tolerances) - 1)]
            return relative, self.absolute, ratio
        loose = TIGHT if dtype == np.float32 else LOOSE
        return loose, self.absolute, loose


def _value(row: Mapping[str, str], column: str) -> Any:
    """A literal of Python, in which nan and inf may stand; None if the cell is empty."""
    text = (row.get(column) or "").strip()
    if not text:
        return None
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        tree = ast.parse(text, mode="eval")
        return ast.literal_eval(ast.fix_missing_locations(_Numbers().visit(tree)))
    except (ValueError, SyntaxError) as problem:
        raise CaseTableError(f"column {column} is {text!r}, expected a literal of Python") from problem


class _Numbers(ast.NodeTransformer):
    """Makes constants of the names nan and inf."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(float(node.id)) if node.id in ("nan", "inf") else node


def _dtype(name: str) -> np.dtype:
    try:
        return NAMED.get(name) or np.dtype(name)
    except TypeError as problem:
        raise CaseTableError(f"dtype is {name!r}, expected one of NumPy or bfloat16") from problem


def _random(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, limits: Sequence[Any] | None
) -> np.ndarray:
    """Numbers in a range, both ends included, or of more than two values."""
    known = [limit for limit in limits or () if limit is not None]
    with np.errstate(all="ignore"):
        if len(known) > 2:
            return rng.choice(np.array(known, np.float64), shape).astype(dtype)
        low, high = known if len(known) == 2 else (0, 1) if dtype.kind in "biu" else (-1.0, 1.0)
        if dtype.kind in "biu":
            return rng.integers(math.ceil(low), math.floor(high), shape, endpoint=True).astype(dtype)
        drawn = rng.random(shape)
        return np.where(low == high, low, low * (1 - drawn) + high * drawn).astype(dtype)


def _run(case: _Case, op: Op, of_file: Mapping[str, Golden] | None, most_elements: int | None) -> CaseResult:
    """Run a row."""
    own = _function(op, case.kernel)
    if definition_name(op) not in own.__globals__:
        raise CaseTableError(f"no op computes {case.kernel}, there is a golden function only")
    with_kernel = _function(op, case.kernel)
    with_kernel.__globals__[definition_name(op)] = functools.partial(run, op.name)
    parameters = inspect.signature(own).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind == parameter.POSITIONAL_OR_KEYWORD]
    known = {parameter.name for parameter in parameters if parameter.kind == parameter.KEYWORD_ONLY}
    if len(case.shapes) > len(names):
        raise CaseTableError(f"{len(case.shapes)} inputs, expected at most {len(names)}: {', '.join(names)}")
    elements = sum(math.prod(shape) for shape in [*case.shapes, *(case.out_shapes or ())] if shape is not None)
    if most_elements is not None and elements > most_elements:
        raise CaseTableError(f"more than {most_elements} elements")
    inputs = case.inputs(names)
    if case.kernel in PREPARED:
        inputs = PREPARED[case.kernel](inputs, case.attributes)
    attributes = {own: value for own, value in case.attributes.items() if own not in names}
    got = _outputs(with_kernel(*inputs, **attributes))
    if of_file is None:
        expected = _outputs(own(*inputs, **attributes))
    else:
        if case.kernel not in of_file:
            raise CaseTableError(f"the golden file has no function for {case.kernel}, only {', '.join(of_file)}")
        described = {
            "input_dtypes": case.dtypes,
            "input_ori_shapes": case.shapes,
            "input_formats": [case.attributes.get("data_format", "ND")] * len(names),
            "output_dtypes": case.out_dtypes,
            "testcase_name": case.name,
        }
        try:
            expected = _outputs(of_file[case.kernel](*inputs, **attributes, **described))
        except Exception as problem:  # the file is a program
            raise CaseTableError(f"the golden function raises {type(problem).__name__}: {problem}") from problem
    return _compared(case, got, expected, tuple(sorted(set(attributes) - known)))


def _function(op: Op, kernel: str) -> Golden:
    """The golden function of a kernel, in a namespace of its own."""
    namespace: dict[str, Any] = {}
    exec(golden_source(op), namespace)
    return namespace[namespace["__golden__"]["kernel"][kernel]]


def _outputs(results: object) -> list[np.ndarray]:
    return [np.asarray(array) for array in (results if isinstance(results, tuple | list) else (results,))]


def _compared(
    case: _Case, got: Sequence[np.ndarray], expected: Sequence[np.ndarray], unknown: tuple[str, ...]
) -> CaseResult:
    """The result of a row; a golden function may leave out the last outputs."""
    reasons, outputs = [], []
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=False)):
        relative, absolute, ratio = case.tolerance(index, ours.dtype)
        found = compare(f"output {index}", ours, theirs, rtol=relative, atol=absolute)
        outputs.append(found)
        if found.problem is not None:
            reasons.append(f"{found.name}: {found.problem}")
        elif found.outside > ratio * ours.size:
            reasons.append(f"{found.name}: {found.outside} of {ours.size} elements beyond {relative:g}, {absolute:g}")
        shape = None if case.out_shapes is None else tuple(case.out_shapes[index])
        if shape not in (None, ours.shape):
            reasons.append(f"{found.name}: shape {shape_text(ours.shape)}, in the table {shape_text(shape)}")
        dtype = None if case.out_dtypes is None else _dtype(case.out_dtypes[index])
        if dtype not in (None, ours.dtype):
            reasons.append(f"{found.name}: dtype {ours.dtype}, in the table {dtype}")
    status: Status = "fail" if reasons else "pass"
    return CaseResult(case.name, case.kernel, status, "; ".join(reasons), tuple(outputs), unknown)


def _with_places(inputs: list[np.ndarray | None], attributes: Mapping[str, Any]) -> list[np.ndarray | None]:
    """Inputs of MaxPoolGradWithArgmaxV3 with the places of maxima in place of random numbers."""
    x, grad, argmax = inputs
    assert x is not None
    assert argmax is not None
    forward = "max_pool_with_argmax_v3"
    _, places = _function(kernels()[forward], forward)(x, **attributes)
    return [x, grad, places.astype(argmax.dtype)]


PREPARED: Mapping[str, Callable[[list[np.ndarray | None], Mapping[str, Any]], list[np.ndarray | None]]] = {
    "max_pool_grad_with_argmax_v3": _with_places
}
"""Inputs that depend on each other."""
