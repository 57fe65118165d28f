"""What the documents show is run, and the pages of the ops are those that `make docs` writes."""

import ast
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnx_ops
from onnx_ops.core.op import Op
from onnx_ops.integrations.examples import example_body
from onnx_ops.ops import OPS
from scripts import docs

ROOT = Path(__file__).parents[2]


def _blocks(name: str, language: str = "python") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)


@pytest.mark.skipif(
    importlib.util.find_spec("torch") is None or importlib.util.find_spec("onnxscript") is None,
    reason="captures from PyTorch",
)
@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.onnx, about itself
def test_readme_examples_print_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for example in _blocks("README.md"):
        exec(compile(example, "README.md", "exec"), names)
    assert capsys.readouterr().out == "".join(_blocks("README.md", "text"))


def test_examples_of_nodes_run() -> None:
    """One after the other, as a reader tries them; each ends in an assert."""
    names: dict[str, Any] = {}
    examples = _blocks("docs/nodes.md")
    assert len(examples) == 4
    for example in examples:
        assert example.strip().splitlines()[-1].startswith("assert ")
        exec(compile(example, "nodes.md", "exec"), names)


@pytest.mark.parametrize("page", ["docs/ops-on-arrays.md", "docs/ascend.md"])
def test_examples_of_a_page_run(page: str) -> None:
    names: dict[str, Any] = {}
    for example in _blocks(page):
        exec(compile(example, page, "exec"), names)


def test_error_that_is_shown_is_raised() -> None:
    node = onnx_ops.make_node("HardshrinkBackward", ["grad", "x"], ["y"], name="gate")
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "hardshrink",
        [value(name, onnx.TensorProto.FLOAT, ["M", "N"]) for name in ("grad", "x")],
        [value("y", onnx.TensorProto.FLOAT, None)],
    )
    opsets = [onnx.helper.make_opsetid("", 21), onnx_ops.opset_import()]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.log_severity_level = 4  # onnxruntime would log the error that is wanted here
    session = onnx_ops.InferenceSession(model, options)
    with pytest.raises(Exception, match="HardshrinkBackward") as error:
        session.run(None, {"grad": np.ones((3, 4), np.float32), "x": np.ones((2, 4), np.float32)})
    section = (ROOT / "docs" / "nodes.md").read_text().split("## Errors")[1]
    (shown,) = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert " ".join(shown.split()) in str(error.value)


DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *(f"docs/{path.name}" for path in ROOT.glob("docs/*.md"))]


@pytest.mark.parametrize("name", sorted(DOCUMENTS))
def test_links_of_the_documents_resolve(name: str) -> None:
    """Those to files, and those to headings of documents."""
    targets = re.findall(r"\]\(([^)]+)\)", (ROOT / name).read_text())
    assert [target for target in targets if "://" not in target and not _is_there(ROOT / name, target)] == []


def _is_there(document: Path, target: str) -> bool:
    path, _, heading = target.partition("#")
    file = document.parent / path if path else document
    return file.exists() and (not heading or heading in _anchors(file.read_text()))


def _anchors(text: str) -> set[str]:
    return {heading.lstrip("# ").lower().replace(" ", "-") for heading in _headings(text)}


ADDED = (
    "onnx_ops/ops/softsign/softsign_backward.py",
    "tests/ops/softsign_backward.py",
    "onnx_ops/ops/lerp/lerp_backward.py",
)
"""The files that CONTRIBUTING.md writes out, in its order."""


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository with the ops that CONTRIBUTING.md adds."""
    root = tmp_path_factory.mktemp("extended")
    for folder in ("onnx_ops", "models", "tests/ops"):
        shutil.copytree(ROOT / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (root / "scripts").mkdir()
    for folder, *names in (
        ("scripts", "__init__", "docs", "markdown"),
        ("tests", "backends", "built_library", "builds"),
    ):
        for name in names:
            shutil.copy(ROOT / folder / f"{name}.py", root / folder)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for name, source in zip(ADDED, _blocks("CONTRIBUTING.md"), strict=False):
        assert f"`{name}`" in text
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(source)
    for family in ("softsign", "lerp"):
        (root / "onnx_ops" / "ops" / family / "__init__.py").touch()
    return root


def _run(root: Path, *arguments: str) -> str:
    """Run Python on a copy of the repository."""
    environment = {**os.environ, "PYTHONPATH": str(root)}
    result = subprocess.run(
        [sys.executable, *arguments], cwd=root, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_files_of_contributing_pass_ruff(extended: Path) -> None:
    shutil.copy(ROOT / "pyproject.toml", extended)
    translation = "onnx_ops/torch/operators/searchsorted.py"
    (extended / translation).write_text(_blocks("CONTRIBUTING.md")[len(ADDED)])
    _run(extended, "-m", "ruff", "check", *ADDED, translation)
    _run(extended, "-m", "ruff", "format", "--check", *ADDED, translation)


def test_adding_an_op_as_contributing_says(extended: Path) -> None:
    """The file that CONTRIBUTING.md writes out makes an op, by itself, in kernel and function body."""
    program = """
import numpy as np, onnx, onnxruntime, onnx_ops
value = lambda name: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["N"])
node = onnx_ops.make_node("LerpBackward", ["g", "w"], ["y", "z"])
graph = onnx.helper.make_graph([node], "g", [value("g"), value("w")], [value("y"), value("z")])
opsets = [onnx.helper.make_opsetid("", 21), onnx_ops.opset_import()]
model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
feeds = {"g": np.array([1, 2, -8], np.float32), "w": np.array([0, 0.5, 0.25], np.float32)}
plain = onnxruntime.InferenceSession(onnx_ops.link(model).SerializeToString())
for session in (onnx_ops.InferenceSession(model), plain):
    assert [y.tolist() for y in session.run(None, feeds)] == [[1.0, 1.0, -6.0], [0.0, 1.0, -2.0]]
print("done", onnx_ops.__file__)
"""
    printed = _run(extended, "-c", program)
    assert printed.split() == ["done", str(extended / "onnx_ops" / "__init__.py")]


def test_record_of_contributing_drives_the_tests_of_the_op(extended: Path) -> None:
    """It judges calls in float32 on the kernel, in agreement with results by hand, and finds a wrong number."""
    program = """
import numpy as np, sys
sys.path.insert(0, "tests")
from backends import KERNEL, check_call
from tests.ops import RECORDS
float32 = np.dtype(np.float32)
record = RECORDS["SoftsignBackward"]
calls = [call for call in record.combinations() if {a.dtype for a in call.given.values()} == {float32}]
(worked,) = record.worked(float32)
for call in (record.plain, *calls, worked.call):
    check_call(KERNEL, call)
for name, array in KERNEL.run(worked.call).items():
    np.testing.assert_array_equal(array, np.array(worked.outputs[name], float32))
right = KERNEL.run(record.plain)["grad_input"]
print(len(calls), [bool((record.errors(record.plain, "grad_input", x) > 4).any()) for x in (right, right * 1.00001)])
"""
    count, *found = _run(extended, "-c", program).split(maxsplit=1)
    assert int(count) > 0
    assert found == ["[False, True]\n"]


def test_an_op_added_as_contributing_says_has_a_page(extended: Path) -> None:
    """Also one whose documentation has a formula only."""
    _run(extended, "-m", "scripts.docs")
    page = extended / "docs" / "ops" / "LerpBackward.md"
    text = page.read_text()
    assert _headings(text)[1:3] == ["## Formula", "## Signature"]
    assert "grad_end   = grad_output * weight" in text
    assert "(LerpBackward.md)" in (page.parent / docs.INDEX).read_text()
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    _run(extended, "-c", example)


# The pages of the ops

EACH_OP = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)


def _page(op: Op) -> str:
    return f"docs/ops/{docs.page_name(op)}"


def _headings(text: str) -> list[str]:
    return re.findall(r"^#+ .*$", re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE), re.MULTILINE)


def test_pages_are_not_stale() -> None:
    """Run `make docs` if this fails."""
    assert docs.stale_pages(docs.pages()) == []


@pytest.mark.full
def test_stale_pages_are_named_and_put_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that was edited, one that is missing, and one of an op that is gone."""
    monkeypatch.setattr(docs, "ROOT", tmp_path)
    monkeypatch.setattr(docs, "PAGES", tmp_path / "docs" / "ops")
    assert docs.main([]) == 0
    assert docs.main(["--check"]) == 0
    edited, missing = (docs.PAGES / docs.page_name(op) for op in list(OPS.values())[:2])
    edited.write_text(edited.read_text() + "by hand\n")
    missing.unlink()
    left_over = docs.PAGES / "GoneBackward.md"
    left_over.write_text("# GoneBackward\n")
    capsys.readouterr()
    assert docs.main(["--check"]) == 1
    named = [line.split(" is stale")[0] for line in capsys.readouterr().out.splitlines()]
    assert named == sorted(f"docs/ops/{path.name}" for path in (edited, missing, left_over))
    assert docs.main([]) == 0
    assert not left_over.exists()
    assert docs.main(["--check"]) == 0


@EACH_OP
def test_page_example_runs(op: Op) -> None:
    (example,) = _blocks(_page(op))
    exec(compile(example, _page(op), "exec"), {})


@EACH_OP
def test_page_example_can_fail(op: Op, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last statement, and no other, notices a wrong number."""

    class Wrong(onnx_ops.InferenceSession):
        def run(self, *arguments: Any) -> list[np.ndarray]:
            *others, last = super().run(*arguments)
            step = 1 if last.dtype.kind == "i" else 1e-3
            last.flat[0] = not last.flat[0] if last.dtype.kind == "b" else last.flat[0] + step
            return [*others, last]

    monkeypatch.setattr(onnx_ops, "InferenceSession", Wrong)
    (example,) = _blocks(_page(op))
    *before, last = ast.parse(example).body
    names: dict[str, Any] = {}
    exec(compile(ast.Module(before, []), _page(op), "exec"), names)
    with pytest.raises(AssertionError):
        exec(compile(ast.Module([last], []), _page(op), "exec"), names)


@pytest.mark.parametrize("path", sorted((ROOT / "docs" / "ops").glob("*.md")), ids=lambda path: path.stem)
def test_page_links_resolve(path: Path) -> None:
    targets = re.findall(r"\]\(([^)]+)\)", path.read_text())
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


@EACH_OP
def test_page_headings(op: Op) -> None:
    """The op, then the sections of the schema's documentation among those that all pages have."""
    titles = re.findall(r"\n\n([A-Z]\w*(?: \w+){0,2}):\s", op.schema.doc)
    assert _headings((ROOT / _page(op)).read_text()) == [
        f"# {op.name}",
        "## Formula",
        "## Signature",
        "### Inputs",
        "### Outputs",
        *(["### Attributes"] if op.schema.attributes else []),
        *(f"## {title}" for title in titles),
        "## Correspondence with aclnn",
        "## Example",
        "## Function body",
    ]


@EACH_OP
def test_page_signature_is_a_node(op: Op) -> None:
    """With values for the required attributes, of which it shows none."""
    (text,) = [block for block in _blocks(_page(op), "text") if f" = {onnx_ops.DOMAIN}.{op.name} " in block]
    for name, value in op.required_attributes.items():
        assert not re.search(rf"\b{name}: \w+ =", text)
        text = re.sub(rf"\b{name}: \w+", f"\\g<0> = {list(value) if isinstance(value, tuple) else value}", text)
    node = onnx.parser.parse_node(text)
    assert tuple(node.input) == op.input_names
    assert {attribute.name for attribute in node.attribute} == set(op.schema.attributes)


def test_only_what_is_in_backticks_is_code() -> None:
    """Names of inputs are English words, too, and occur in expressions."""
    text = "the mean of `input` is much larger; 2 * exp(target / 2) < `exp(target) * 2`"
    expected = "the mean of `input` is much larger; 2 \\* exp(target / 2) \\< `exp(target) * 2`"
    assert docs.inline(text) == expected


@EACH_OP
def test_page_has_whole_expressions_as_code(op: Op) -> None:
    """No code within an expression such as a call, or next to an operator."""
    text = re.sub(r"^```.*?^```$", "", (ROOT / _page(op)).read_text(), flags=re.DOTALL | re.MULTILINE)
    assert re.findall(r"\w\([^()\s]*`|`\S*`\s\\\*|\\\*\s`", text) == []


@EACH_OP
def test_page_body_is_the_linked_one(op: Op) -> None:
    """Wrapped, it is still the function."""
    function = onnx.parser.parse_function(_blocks(_page(op), "text")[-1])
    assert docs.text_of(function) == docs.text_of(example_body(op))


@EACH_OP
def test_page_picture(op: Op) -> None:
    """Small, all boxes lead from inputs to an output, and all outputs of the example are there.

    Random numbers lead from none, as those depend on a seed, which is not drawn.
    """
    pictures = _blocks(_page(op), "mermaid")
    results = re.findall(r'--> \w+\(\["([\w, ]+)"\]\)$', pictures[0], re.MULTILINE)
    assert {name for names in results for name in names.split(", ")} == set(op.example.outputs)
    for picture in pictures:
        boxes = set(re.findall(r'^ *(\w+)\["', picture, re.MULTILINE))
        rounded = set(re.findall(r'(\w+)\(\["', picture))
        arrows = re.findall(r'^ *(\w+)(?:\(\["\w+"\]\))? --> (\w+)', picture, re.MULTILINE)
        starts, ends = map(set, zip(*arrows, strict=True))
        assert starts | ends == boxes | rounded
        assert boxes <= starts
        assert boxes <= ends or rounded <= ends
        assert 2 <= len(boxes | rounded) <= 40
