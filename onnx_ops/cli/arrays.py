"""The commands about ops on arrays."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import io
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from onnx_ops.cli.commands import op_named
from onnx_ops.cli.terminal import (
    FAILED,
    AsJson,
    compiling_status,
    counted,
    fail,
    make_console,
    print_fields,
    print_json,
    print_wrapped,
    reason,
)
from onnx_ops.core.op import Op
from onnx_ops.core.types import shape_text

if TYPE_CHECKING:
    import numpy as np

    from onnx_ops.arrays.comparison import Comparison

LIKE = "Dtype and shape of a raw .bin file, such as float16:3x4."


def run(
    op: Annotated[str, typer.Argument(metavar="OP", help="Name of the op; case does not matter.")],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME=]FILE", help=".npy, .npz, .safetensors or raw .bin files, in the op's order."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="An attribute: reduction=mean, stride=2,2.")
    ] = None,
    like: Annotated[
        list[str] | None,
        typer.Option(metavar="DTYPE:SHAPE", help=f"{LIKE} Once for all of them, or once for each in order."),
    ] = None,
    backend: Annotated[
        Literal["kernel", "reference", "portable"] | None,
        typer.Option(help="Kernel, the default; NumPy definition; or function body in standard operators."),
    ] = None,
    golden: Annotated[bool, typer.Option("--golden", help="Compute and return float64, by the definition.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write each output to a file in this folder.")] = None,
    form: Annotated[Literal["npy", "bin"], typer.Option("--format", help="Of the files in DIR.")] = "npy",
    as_json: AsJson = False,
) -> None:
    """Run an op on arrays in files.

    A file with one array is the next input in the op's order, or the input NAME; a file with several arrays holds the
    inputs that its arrays are named as. DIR gets a file for each output, named as the output; an existing file is
    overwritten. NumPy does not know bfloat16, and writes it as V2 into .npy files, which are read as bfloat16.

    JSON: op; outputs, a list of name, dtype, shape, file (null without --out), and values, a nested list if there are
    at most 100, else null. An output that needs an input that is omitted is left out.
    """
    from onnx_ops.arrays.execution import run as run_op
    from onnx_ops.arrays.files import write_array

    record = op_named(op, as_json)
    with refusals(as_json):
        positional, named = _inputs(record, inputs or [], like or [])
        attributes = dict(_setting(record, text) for text in settings or [])
        with compiling_status():
            result = run_op(
                record.name, *positional, backend=backend, dtype="float64" if golden else None, **named, **attributes
            )
        results = result if isinstance(result, tuple) else (result,)
        pairs = zip(record.output_names, results, strict=True)
        found = {name: array for name, array in pairs if array is not None}
        files = {} if out is None else {name: out / f"{name}.{form}" for name in found}
        if out is not None:
            out.mkdir(parents=True, exist_ok=True)
        for name, file in files.items():
            write_array(file, found[name])
    if as_json:
        print_json(op=record.name, outputs=[_described(name, array, files.get(name)) for name, array in found.items()])
        return
    console = make_console()
    for name, array in found.items():
        where = f", {files[name]}" if files else ""
        console.print(f"{name}: {array.dtype.name} {shape_text(array.shape)}{where}", style="bold")
        if not files:
            for line in str(array).splitlines():
                console.print(line, soft_wrap=True)


def compare(
    got: Annotated[Path, typer.Argument(metavar="GOT", help="A file of arrays, or a folder of such files.")],
    golden: Annotated[Path, typer.Argument(metavar="GOLDEN", help="The file or folder to compare with.")],
    like: Annotated[str | None, typer.Option(metavar="DTYPE:SHAPE", help=LIKE)] = None,
    rtol: Annotated[float | None, typer.Option(min=0, help="Allow errors of atol + rtol * abs(golden).")] = None,
    atol: Annotated[float | None, typer.Option(min=0, help="As above; 0 if only the other one is given.")] = None,
    ulp: Annotated[float | None, typer.Option(min=0, help="Allow an error of so many units in the last place.")] = None,
    cosine: Annotated[float | None, typer.Option(help="Require this cosine similarity.")] = None,
    thousandth: Annotated[
        float | None, typer.Option(min=0, max=1, help="Require this One Thousandth Err Ratio.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write CSV.")] = False,
    as_json: AsJson = False,
) -> None:
    """Compare results with golden ones, with the measures of msprobe.

    Two files with one array each are compared; else arrays with the same name are, and in folders files with the same
    path, whatever their suffix. The golden array may have another dtype, such as float64.

    Cosine: cosine similarity. MaxAbsErr: largest abs(got - golden). MaxRelativeErr: largest abs((got - golden) /
    golden), where 2**-52 is added to a golden 0 and to the value beside it. One Thousandth and Five Thousandths Err
    Ratio: the ratio of elements with a relative error below 0.001 and 0.005. Max ulp: the largest error in units in the
    last place of the coarser dtype. Worst: the element with the largest error in ulp.

    NaNs are equal, and infinities of the same sign; an infinity is equal to a golden number that rounds to it. A NaN or
    an infinity beside another value is an infinite error.

    Exit status 1 for arrays that are missing or differ in shape, for NaNs and infinities that differ, and for those
    beyond a tolerance that is given.

    JSON: ok; pairs, a list of name, ok, problem (null, or why the arrays cannot be compared), dtype, golden_dtype,
    shape, cosine, max_abs_err, max_relative_err, one_thousandth_err_ratio, five_thousandths_err_ratio, max_ulp,
    different_nonfinite, outside (elements beyond rtol and atol), worst (index), got, golden (values there).
    """
    from onnx_ops.arrays.comparison import compare as compare_arrays
    from onnx_ops.arrays.files import Layout, pairs

    if as_csv and as_json:
        fail("--csv and --json are both given, expected one of them", as_json)
    bounded = rtol is not None or atol is not None
    rows: list[tuple[Comparison, bool]] = []
    with refusals(as_json):
        layout = None if like is None else Layout.parsed(like)
        for name, ours, theirs in pairs(got, golden, layout):
            found = compare_arrays(name, ours, theirs, rtol=(rtol or 0) if bounded else math.inf, atol=atol or 0)
            good = (
                found.problem is None
                and not found.different_nonfinite
                and not found.outside
                and (ulp is None or found.max_ulp <= ulp)
                and (cosine is None or found.cosine >= cosine)
                and (thousandth is None or found.one_thousandth_err_ratio >= thousandth)
            )
            rows.append((found, good))
    ok = all(good for _, good in rows)
    if as_json:
        print_json(ok=ok, pairs=[{"ok": good, **dataclasses.asdict(found)} for found, good in rows])
    elif as_csv:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([COLUMNS, *(_cells(found, good) for found, good in rows)])
        print(text.getvalue(), end="")
    else:
        console = make_console()
        for found, good in rows:
            name, result, *cells = _cells(found, good)
            console.print(f"{name}: {result}", style="bold" if good else "bold red")
            print_fields(console, [(title, cell) for title, cell in zip(COLUMNS[2:], cells, strict=True) if cell])
        bad = sum(not good for _, good in rows)
        print_wrapped(console, f"{counted(len(rows), 'pair')}, {bad} beyond the tolerances.")
    if not ok:
        raise typer.Exit(FAILED)


COLUMNS = (
    "Name",
    "Result",
    "Problem",
    "Dtype",
    "Golden dtype",
    "Shape",
    "Cosine",
    "MaxAbsErr",
    "MaxRelativeErr",
    "One Thousandth Err Ratio",
    "Five Thousandths Err Ratio",
    "Max ulp",
    "Different NaN or inf",
    "Outside rtol, atol",
    "Worst",
    "Got there",
    "Golden there",
)


def _cells(found: Comparison, good: bool) -> list[str]:
    """The texts of a row under `COLUMNS`."""
    cells = [found.name, "pass" if good else "fail", found.problem or ""]
    if found.problem is not None:
        return cells + [""] * (len(COLUMNS) - len(cells))
    measures = (
        found.cosine,
        found.max_abs_err,
        found.max_relative_err,
        found.one_thousandth_err_ratio,
        found.five_thousandths_err_ratio,
        found.max_ulp,
    )
    return [
        *cells,
        found.dtype,
        found.golden_dtype,
        shape_text(found.shape),
        *(f"{measure:.9g}" for measure in measures),
        str(found.different_nonfinite),
        str(found.outside),
        "" if found.worst is None else str(list(found.worst)),
        "" if found.got is None else repr(found.got),
        "" if found.golden is None else repr(found.golden),
    ]


@contextlib.contextmanager
def refusals(as_json: bool) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        fail(reason(error), as_json)
    except ValueError as refusal:  # those of the package are ValueErrors
        fail(str(refusal), as_json)


def _inputs(op: Op, texts: list[str], like: list[str]) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    """The arrays of the files by position, and those by name."""
    from onnx_ops.arrays.files import ArrayFileError, Layout, read_arrays

    layouts = [Layout.parsed(text) for text in like]
    named_files = [_name_and_path(op, text) for text in texts]
    raw = [path for _, path in named_files if path.suffix.lower() == ".bin"]
    if len(layouts) not in (0, 1, len(raw)):
        raise ArrayFileError(
            f"got {len(layouts)} times --like, expected once or once for each of {len(raw)} .bin files"
        )
    of_raw = iter(layouts * len(raw) if len(layouts) == 1 else layouts)
    positional: list[np.ndarray] = []
    named: dict[str, np.ndarray] = {}
    for name, path in named_files:
        arrays = read_arrays(path, next(of_raw, None) if path.suffix.lower() == ".bin" else None)
        if name is None and len(arrays) == 1:
            positional.extend(arrays.values())
            continue
        if name is not None and len(arrays) != 1:
            raise ArrayFileError(f"{path}, for input '{name}', holds {counted(len(arrays), 'array')}, expected 1")
        for own, array in arrays.items():
            key = name or own
            if key in named or key not in op.input_names:
                problem = "is given twice" if key in named else f"of {path} is no input of {op.name}"
                raise ArrayFileError(f"'{key}' {problem}, expected each of {', '.join(op.input_names)} at most once")
            named[key] = array
    return positional, named


def _name_and_path(op: Op, text: str) -> tuple[str | None, Path]:
    """The input and the file of an argument "name=path" or "path"."""
    from onnx_ops.arrays.files import ArrayFileError

    name, equals, path = text.partition("=")
    if equals and name in op.input_names:
        return name, Path(path)
    if equals and not Path(text).exists():
        raise ArrayFileError(f"'{name}' is no input of {op.name}, expected one of {', '.join(op.input_names)}")
    return None, Path(text)


def _setting(op: Op, text: str) -> tuple[str, Any]:
    """An attribute and its value, of a text such as "reduction=mean", "lambd=0.5" or "stride=2,2"."""
    from onnx.defs import OpSchema

    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text} has no value, expected NAME=VALUE")
    kind = op.attribute(name).type
    if kind == OpSchema.AttrType.STRING:
        return name, value
    try:
        numbers = json.loads(f"[{value.strip('[]')}]")
    except ValueError:  # a word
        return name, value
    listed = kind in (OpSchema.AttrType.INTS, OpSchema.AttrType.FLOATS)
    return name, numbers if listed or len(numbers) != 1 else numbers[0]


MOST_VALUES = 100
"""Elements of an output in JSON."""


def _described(name: str, array: np.ndarray, file: Path | None) -> dict[str, Any]:
    """An output in JSON."""
    values = array.astype("float64") if array.dtype.kind not in "biu" else array
    return {
        "name": name,
        "dtype": array.dtype.name,
        "shape": list(array.shape),
        "file": None if file is None else str(file),
        "values": values.tolist() if array.size <= MOST_VALUES else None,
    }
