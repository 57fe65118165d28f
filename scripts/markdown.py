"""Markdown tables."""

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[int] = ()) -> str:
    """A Markdown table.

    Args:
        header: titles of the columns.
        rows: cells of each row.
        right: indices of the columns that are aligned to the right.
    """
    cells = [[cell.replace("|", "\\|") for cell in row] for row in [header, *rows]]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = ["-" * (w - 1) + ":" if i in right else "-" * w for i, w in enumerate(widths)]
    aligned = [
        [cell.rjust(w) if i in right else cell.ljust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))]
        for row in [cells[0], rule, *cells[1:]]
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in aligned)
