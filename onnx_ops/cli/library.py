"""The command that builds a library of the kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onnx_ops.cli.commands import op_named
from onnx_ops.cli.inspection import inspect
from onnx_ops.cli.terminal import (
    AsJson,
    compiling_status,
    counted,
    fail,
    make_console,
    print_json,
    print_wrapped,
    refusals,
)
from onnx_ops.core.op import Op
from onnx_ops.graph.files import read_light_model
from onnx_ops.ops import ALL_VERSIONS
from onnx_ops.training.in_place import BARRIER


def build_library(
    path: Annotated[Path, typer.Argument(metavar="OUT", help="The library to write.")],
    ops: Annotated[str, typer.Option("--ops", help="Names of the ops, with commas; all by default.")] = "",
    model: Annotated[Path | None, typer.Option("--for", help="A model or step: its ops alone.")] = None,
    cpu: Annotated[
        str,
        typer.Option("--cpu", help="baseline, v3, v4 (of x86-64), or native, with commas; all but native by default."),
    ] = "",
    target: Annotated[
        str, typer.Option("--target", help="Architecture and system, such as aarch64-linux; this machine's by default.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Build a shared library with the kernels, for sessions that have neither Python nor a compiler.

    Any onnxruntime session registers it as a library of custom ops, and then runs linked models on the kernels. It has
    code for each of the processors given by --cpu, among which it selects when it is loaded. It needs a C compiler
    here (CC, cc, gcc, clang, or the package ziglang; for --target CC, a cross-compiler such as aarch64-linux-gnu-gcc,
    or ziglang), and the C library where it runs.

    JSON: output; bytes; ops, a list of names; cpus, a list of names.
    """
    from onnx_ops.library.build import build
    from onnx_ops.library.objects import LibraryError, levels

    if not path.absolute().parent.is_dir():  # kernels are compiled for minutes before the library is written
        fail(f"there is no folder {path.parent}", as_json)
    records = _wanted(ops, model, as_json)
    try:
        cpus = [level.name for level in levels(list(filter(None, cpu.split(","))), target)]
        with compiling_status():
            build(path, records, cpus, target)
        size = path.stat().st_size
    except (OSError, LibraryError) as error:
        fail(f"the library cannot be built: {error}", as_json)
    if as_json:
        print_json(output=str(path), bytes=size, ops=[op.kernel_name for op in records], cpus=cpus)
        return
    text = f"Wrote {path}: {counted(len(records), 'op')}, for {', '.join(cpus)}, {size / 1e6:.1f} MB."
    print_wrapped(make_console(), text)


def _wanted(names: str, model: Path | None, as_json: bool) -> list[Op]:
    """The ops with these names, or those of a model; all by default.

    OptimizationBarrier is always among them: Trainer orders the updates in place by it, and its function body orders
    nothing.
    """
    if names and model:
        fail("--ops and --for are both given, expected one of them", as_json)
    if not names and not model:
        return list(ALL_VERSIONS)
    if model:
        with refusals(as_json):
            nodes = inspect(read_light_model(model)).nodes
        kernels = {node.kernel or node.bare_kernel for node in nodes}
        if kernels.isdisjoint(op.kernel_name for op in ALL_VERSIONS):
            fail(f"{model} has no ops of the domain", as_json)
    else:
        wanted = {op_named(name, as_json).name for name in names.split(",")}
        kernels = {op.kernel_name for op in ALL_VERSIONS if op.name in wanted}
    return [op for op in ALL_VERSIONS if op.kernel_name in kernels | {BARRIER.kernel_name}]
