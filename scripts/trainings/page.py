"""The page with the results of all trainings: one HTML file with embedded figures."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

from scripts.trainings.command import Result

COLUMNS = {"op": "", "task": "", "result": "", "seconds": "number", "loss difference": "number"}
"""Titles of the columns, with the CSS class of their cells."""

STYLE = """
:root { color-scheme: light; --ink: #1c2530; --soft: #5a6675; --line: #dfe4ea; --back: #f5f7f9; --mark: #0b6e99; }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink); font: 16px/1.55 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.25rem; margin: 0; }
p { margin: .4rem 0; max-width: 46rem; }
.soft { color: var(--soft); }
.table { margin: 1.5rem 0 2.5rem; }
table { border-collapse: collapse; width: 100%; background: #fff; border: 1px solid var(--line); }
th, td { text-align: left; padding: .55rem .8rem; border-top: 1px solid var(--line); vertical-align: top; }
th { font-size: .85rem; color: var(--soft); font-weight: 600; border-top: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
a { color: var(--mark); }
section { background: #fff; border: 1px solid var(--line); border-radius: 6px; padding: 1.4rem 1.5rem; }
section + section { margin-top: 1.5rem; }
code { font: .9em ui-monospace, monospace; background: var(--back); padding: .1em .35em; border-radius: 3px; }
code, .soft { overflow-wrap: break-word; }
figure { margin: 1.2rem 0 0; }
.picture { overflow-x: auto; }
img { display: block; width: 100%; min-width: 48rem; height: auto; }
.wider { display: none; }
figcaption { color: var(--soft); font-size: .92rem; margin-top: .4rem; max-width: 46rem; }
.missed { color: #b3261e; }
/* On narrow screens figures scroll horizontally, for their text to be readable, and a table row becomes a list. */
@media (max-width: 54rem) {
  .wider { display: inline; }
  main { padding: 1.5rem .8rem 3rem; }
  section { padding: 1rem .9rem; }
  table, tbody, tr, td { display: block; }
  tr:first-child { display: none; }
  tr + tr { padding: .6rem .8rem; border-top: 1px solid var(--line); }
  tr:nth-child(2) { border-top: 0; }
  td, td.number { padding: .1rem 0; border: 0; text-align: left; white-space: normal; overflow-wrap: anywhere; }
  td::before { content: attr(data-of) ": "; color: var(--soft); font-size: .85rem; }
}
"""


def page(results: Mapping[str, Result], *, full: bool) -> str:
    """The HTML of the page.

    Args:
        results: by name of the training.
        full: whether these are the full trainings.
    """
    form = "full" if full else "quick"
    rows = "".join(row(name, result) for name, result in results.items())
    sections = "".join(section(name, result, full=full) for name, result in results.items())
    heads = "".join(f'<th class="{kind}">{column}</th>' for column, kind in COLUMNS.items())
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>onnx_ops: five trainings</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<h1>Five trainings without a training framework</h1>
<p>Each training step (forward pass, loss, gradients, parameter update) is one ONNX graph, captured from PyTorch and run
by onnxruntime. These are the {form} trainings. The loss difference is the maximal relative difference between the first
losses and those of PyTorch with the same initial state and batches.</p>
<div class="table"><table>
<tr>{heads}</tr>
{rows}</table></div>
{sections}</main>
</body>
</html>
"""


def row(name: str, result: Result) -> str:
    cells = (
        (f'<a href="#{name}">{escape(result.op)}</a>', True),
        (escape(result.task), True),
        (escape(result.figure), result.reached),
        (f"{result.seconds:.0f}", True),
        (f"{result.difference:.0e}", result.is_like_torch),
    )
    written = "".join(
        f'<td class="{kind}{"" if good else " missed"}" data-of="{column}">{content}</td>'
        for (column, kind), (content, good) in zip(COLUMNS.items(), cells, strict=True)
    )
    return f"<tr>{written}</tr>\n"


def section(name: str, result: Result, *, full: bool) -> str:
    command = f"python -m scripts.trainings.{name}" + ("" if full else " --quick")
    figures = "".join(figure(path, caption) for path, caption in result.pictures.items())
    return f"""<section id="{name}">
<h2>{escape(result.task[0].upper() + result.task[1:])}</h2>
<p class="soft">{escape(result.op)}: {escape(result.figure)}.</p>
<p><code>{command}</code></p>
{figures}</section>
"""


def figure(path: Path, caption: str) -> str:
    content = base64.b64encode(path.read_bytes()).decode()
    text = escape(caption)
    return (
        f'<figure><div class="picture" tabindex="0"><img src="data:image/png;base64,{content}" alt="{text}"></div>'
        f'<figcaption><span class="wider">(Scroll horizontally.) </span>{text}</figcaption></figure>\n'
    )
