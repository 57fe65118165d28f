"""Writes docs/capture.md: which layers and functions of PyTorch a capture can take, from the table of the sweep test.

`make docs` runs it where PyTorch is installed; `python -m scripts.capture_docs --check` only tells whether the page is
stale.
"""

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch.onnx._internal.exporter._registration import ONNXRegistry

from onnx_ops.torch.decompositions import decompositions
from onnx_ops.torch.table import translation_table
from scripts.markdown import table
from tests.capture.layers import NOT_SWEPT, Case, cases

PAGE = Path(__file__).parents[1] / "docs" / "capture.md"
INTRODUCTION = """\
# What a capture can take

[The guide](from-pytorch.md) shows how a model and its loss become one ONNX graph. This page, which `make docs` writes,
lists what tests compare with PyTorch, the loss and all gradients: in float32 within twice PyTorch's own error or 2e-6
of a tensor's largest entry, in float64 within 1e-10. The calls are in
[tests/capture/layers.py](../tests/capture/layers.py).

What is not listed may work as well: every capture is checked against PyTorch before it is returned, and what cannot be
captured is an error that names the operator, the module that it comes from and what to do."""
ON_DYNAMIC_AXES = """\
Axes that `dynamic_shapes` names may have other sizes in each step. What a layer here cannot do at sizes that are not
known is refused when it is captured.

"""
DYNAMIC = (
    ("any layer", "the batch", ""),
    (
        "`nn.Conv1d`, `2d`, `3d`, all of their arguments",
        "space, time",
        "depthwise ones are slower than over static axes",
    ),
    (
        "`nn.ConvTranspose1d`, `2d`, `3d`",
        "space, time",
        "not with an `output_padding` as large as the stride",
    ),
    ("`nn.Unfold`, `nn.Fold`", "space", ""),
    ("`nn.MaxPool1d`, `2d`, `3d`", "space, time", "`ceil_mode` where no window begins behind the end"),
    ("`nn.AvgPool1d`, `2d`, `3d`", "space, time", ""),
    ("`nn.AdaptiveAvgPool1d`, `2d`, `3d`", "space, time", ""),
    ("`nn.AdaptiveMaxPool1d`, `2d`, `3d`", "space, time", "to 1 only"),
    ("`F.pad` in all modes", "space, time", ""),
    (
        "`nn.Upsample`, `F.interpolate`",
        "space, time",
        "to a number, by a factor, or to another dynamic size; not bicubic, nor with `antialias`",
    ),
    (
        "`nn.LSTM`, `nn.GRU`, `nn.RNN`",
        "time",
        "as a Scan; an LSTM over a static number of steps, which is written out, is faster",
    ),
    ("attention, `nn.TransformerEncoderLayer`, `nn.Embedding`", "time", ""),
    (
        "batch, instance, group and layer norms",
        "space, time",
        "instance and group norms in float32 only; not the axes that a layer norm averages over",
    ),
    ("`F.ctc_loss`", "time, labels", ""),
)
"""Layers, their axes that may be dynamic, and what limits them; tests/capture/test_dynamic_axes.py tries them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the page, or check it; returns the exit status."""
    parser = argparse.ArgumentParser(description="Write docs/capture.md from the table of the sweep.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit with 1 if the page is stale")
    text = page()
    if parser.parse_args(arguments).check:
        stale = not PAGE.exists() or PAGE.read_text() != text
        if stale:
            print(f"{PAGE.name} is stale: run make docs")
        return int(stale)
    PAGE.write_text(text)
    return 0


def page() -> str:
    """The page as Markdown."""
    sections = cases()
    parts = [INTRODUCTION, "## What works"]
    parts += [f"### {name}\n\n{_working(section)}" for name, section in sections.items()]
    parts.append(
        "## Dynamic axes\n\n" + ON_DYNAMIC_AXES + table(["layer", "axes", "but"], [list(row) for row in DYNAMIC])
    )
    refused = [case for section in sections.values() for case in section if case.refused]
    parts.append("## What is refused\n\n" + table(["call", "why"], [[_code(c.text), c.refused] for c in refused]))
    parts.append("Modules of `torch.nn` that are not tried:\n\n" + _bullets(NOT_SWEPT.items()))
    parts.append("## Operators of the backward pass\n\n" + _backward_operators())
    return "\n\n".join(parts) + "\n"


def _working(section: Iterable[Case]) -> str:
    calls: dict[str, list[Case]] = defaultdict(list)
    for case in section:
        if not case.refused:
            calls[_subject(case.text)].append(case)
    rows = [
        [_code(name), str(len(found)), "yes" if all(case.double for case in found) else "no"]
        for name, found in sorted(calls.items(), key=lambda item: item[0].lower())
    ]
    return table(["function", "calls", "float64"], rows)


def _subject(text: str) -> str:
    """The function that a case is about: the first layer that it makes, else the first function that it calls."""
    for pattern in (r"parametrizations\.\w+", r"\bnn\.\w+", r"\bF\.\w+", r"torch\.linalg\.\w+", r"torch\.special\.\w+"):
        if found := re.search(pattern, text):
            return found.group()
    body = text.split(":", 1)[-1].strip()
    if found := re.search(r"\btorch\.(?!tensor|arange|eye|float)\w+", body):
        return found.group()
    found = re.match(r"x\.(\w+)", body)
    return f"Tensor.{found.group(1)}" if found else body


def _bullets(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"- `{name}`: {reason}" for name, reason in sorted(pairs))


def _code(text: str) -> str:
    return f"`{text}`".replace("|", "\\|")


def _backward_operators() -> str:
    """Every operator of a backward pass that PyTorch has for the CPU, by what becomes of it."""
    translated = set(ONNXRegistry.from_torchlib().functions)
    apart = set(torch.export.default_decompositions()) | set(torch._decomp.decomposition_table)
    kinds: dict[str, list[str]] = defaultdict(list)
    names = sorted(
        {
            name.split("::")[1].split(".")[0]
            for name in torch._C._dispatch_get_all_op_names()
            if name.startswith("aten::") and "backward" in name
        }
    )
    for name in names:
        packet = getattr(torch.ops.aten, name)
        for overload in (getattr(packet, each) for each in packet.overloads()):
            if overload._schema.is_mutable or not _on_cpu(overload):
                continue
            shown = str(overload).removeprefix("aten.").removesuffix(".default")
            if overload in translation_table():
                kinds["own"].append(shown)
            elif overload in decompositions():
                kinds["apart"].append(shown)
            elif overload in translated or overload in apart:
                kinds["theirs"].append(shown)
            else:
                kinds["none"].append(shown)
    texts = {
        "own": "Translated here",
        "apart": "Taken apart here",
        "theirs": "Translated or taken apart by PyTorch",
        "none": "Without a translation; those whose layers are listed above do not come up, as their layer is written"
        " in other operators",
    }
    return "\n\n".join(f"{text}: {', '.join(f'`{name}`' for name in kinds[kind])}." for kind, text in texts.items())


def _on_cpu(overload: torch._ops.OpOverload) -> bool:
    keys = ("CPU", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "CompositeExplicitAutogradNonFunctional")
    return any(torch._C._dispatch_has_kernel_for_dispatch_key(overload.name(), key) for key in keys)


if __name__ == "__main__":
    sys.exit(main())
