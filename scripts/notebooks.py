"""Runs the notebooks in docs/notebooks and writes their outputs into them, for the site: python -m scripts.notebooks

Needs nbclient and ipykernel, besides PyTorch and scikit-learn.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = Path(__file__).parents[1] / "docs" / "notebooks"


def main(names: list[str]) -> None:
    import nbformat
    from nbclient import NotebookClient

    for path in [NOTEBOOKS / f"{name}.ipynb" for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        with tempfile.TemporaryDirectory() as folder:
            NotebookClient(
                notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": folder}}
            ).execute()
        for number, cell in enumerate(notebook.cells):
            cell.id = str(number)
            if cell.cell_type == "code":
                # What depends on the machine: times, warnings, logs of the kernels that are compiled.
                cell.metadata.pop("execution", None)
                cell.outputs = in_one([output for output in cell.outputs if output.get("name") != "stderr"])
        notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        nbformat.write(notebook, path)
        print(path.name)


def in_one(outputs: list[Any]) -> list[Any]:
    """The outputs of a cell, with what it prints in one piece, however often it was flushed."""
    joined: list[Any] = []
    for output in outputs:
        if joined and output["output_type"] == joined[-1]["output_type"] == "stream":
            joined[-1]["text"] += output["text"]
        else:
            joined.append(output)
    return joined


if __name__ == "__main__":
    main(sys.argv[1:])
