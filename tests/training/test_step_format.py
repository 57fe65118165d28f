"""The names in step files and checkpoints are spelled in one place, and JavaScript and C++ have the same ones."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import onnx_ops
from onnx_ops.core import step_format
from onnx_ops.core.step_format import InputRole

ROOT = Path(__file__).parents[2]
JAVASCRIPT = ROOT / "scripts" / "web" / "training"
SPELLED_ONCE = re.compile(
    r"(next|grad)\.(?!\s|$).*|next\.|grad\.|optimizer\.|learning_rate(\.\d*)?|onnx_ops\.(step|training|weights|format|sha256)"
)


def constants() -> dict[str, str]:
    lines = re.findall(r"^export .*", (JAVASCRIPT / "format.js").read_text(), re.MULTILINE)
    found = [re.fullmatch(r'export const (\w+) = ("[^"]*");', line) for line in lines]
    assert all(found), lines
    return {match[1]: json.loads(match[2]) for match in found if match}


def constants_of_cpp() -> dict[str, str]:
    header = Path(onnx_ops.include_directory()) / "onnx_ops" / "trainer" / "step_format.hpp"
    return dict(re.findall(r'\*(\w+) = "([^"]*)"', header.read_text(encoding="utf-8")))


@pytest.mark.parametrize("constants", [constants, constants_of_cpp], ids=["JavaScript", "C++"])
def test_other_languages_have_the_same_names(constants: Callable[[], dict[str, str]]) -> None:
    own = constants()
    roles = {role.name: role.value for role in InputRole}
    assert {name: value for name, value in own.items() if name in roles} == roles
    names = own.keys() - roles.keys()
    assert {"FORMAT", "NEXT", "STEP_METADATA"} <= names
    assert {name: own[name] for name in names} == {name: str(getattr(step_format, name)) for name in names}


def test_javascript_has_them_in_one_file() -> None:
    values = "|".join(map(re.escape, set(constants().values())))
    others = {path.name: path.read_text() for path in JAVASCRIPT.glob("*.js") if path.name != "format.js"}
    assert {"step_file.js", "trainer.js"} <= others.keys()
    for name, text in others.items():
        assert not re.findall(rf'"(?:{values})"', text), name


def texts(path: Path) -> Iterator[str]:
    """The strings in a file, those of f-strings in parts; not its docstrings and annotations."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented:
            yield node.value


@pytest.mark.parametrize("folder", ["onnx_ops", "models", "scripts"])
def test_python_has_them_in_one_file(folder: str) -> None:
    """But for the examples, in which names stand as in programs of users."""
    files = [path for path in (ROOT / folder).rglob("*.py") if not {"node_modules", "examples"} & set(path.parts)]
    spelled = {
        (path.name, text)
        for path in files
        if path != Path(step_format.__file__)
        for text in texts(path)
        if SPELLED_ONCE.fullmatch(text)
    }
    assert not spelled
