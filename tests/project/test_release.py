"""What a release consists of: one version everywhere, metadata, a recipe with the same requirements, a citation."""

from __future__ import annotations

import re
import tarfile
import tomllib
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest

import onnx_ops
from scripts.release import check, platform_wheel

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_one_version() -> None:
    assert check.versions() == dict.fromkeys(check.VERSIONS, onnx_ops.__version__)


def metadata(**others: str) -> Message:
    """Complete core metadata; `others` replaces fields, or removes those that are empty."""
    fields = {
        "Name": "onnx-ops",
        "Version": "0.2.0",
        "Summary": "ops",
        "License-Expression": "Apache-2.0",
        "License-File": "LICENSE",
        "Requires-Python": ">=3.11",
        "Author": "contributors",
        "Keywords": "onnx",
        "Classifier": "Programming Language :: Python :: 3.11",
        "Project-URL": "Home, https://example.org",
        "Description-Content-Type": "text/markdown",
    }
    message = Message()
    for name, value in (fields | {name.replace("_", "-"): value for name, value in others.items()}).items():
        if value:
            message[name] = value
    message.set_payload("# Title")
    return message


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        ({}, []),
        ({"Summary": ""}, ["the metadata have no Summary"]),
        ({"License_File": ""}, ["the metadata have no License-File"]),
        ({"Version": "0.1.0"}, ["the metadata have version 0.1.0, expected 0.2.0"]),
        ({"Requires_Python": ">=3.12"}, ["there is no classifier for Python 3.12"]),
        ({"Project_URL": "Home, ftp://x"}, ["'Home, ftp://x' is no link"]),
        ({"Description_Content_Type": ""}, ["there is no description in Markdown"]),
    ],
    ids=str,
)
def test_problems_of_metadata(others: dict[str, str], expected: list[str]) -> None:
    assert list(check.problems_of_metadata(metadata(**others), "0.2.0")) == expected


def test_recipe_has_the_requirements_of_the_package() -> None:
    """Those of the library and of the command line, in conda's spelling."""
    recipe = (ROOT / "scripts" / "release" / "recipe.yaml").read_text(encoding="utf-8")
    listed = [line.split("#")[0].strip() for line in re.findall(r"^    - (.+)$", recipe, re.MULTILINE)]
    project = PROJECT["project"]
    for wanted in (
        *(project["dependencies"] + project["optional-dependencies"]["cli"]),
        *PROJECT["build-system"]["requires"],
    ):
        name, bounds = re.fullmatch(r"([\w.-]+)(.+)", wanted).groups()
        assert {f"{name} {bounds}", f"{name.replace('-', '_')} {bounds}"} & set(listed), wanted
    (script,) = project["scripts"].items()
    assert f"- {script[0]} = {script[1]}\n" in recipe


def test_citation_is_valid() -> None:
    """By the schema of the Citation File Format, where the package that has it is installed."""
    citation = pytest.importorskip("cffconvert").Citation((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    citation.validate()
    assert citation.cffobj["license"] == PROJECT["project"]["license"]


def test_archives_are_examined(tmp_path: Path) -> None:
    """A wheel and an sdist without some files, of a tree of two."""
    (tmp_path / "onnx_ops" / "core").mkdir(parents=True)
    (tmp_path / "onnx_ops" / "core" / "version.py").write_text('__version__ = "0.2.0"\n')
    (tmp_path / "onnx_ops" / "py.typed").touch()
    (tmp_path / "scripts" / "release").mkdir(parents=True)
    (tmp_path / "scripts" / "release" / "recipe.yaml").write_text('  version: "0.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("version: 0.1.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n\n## 0.2.0\n")
    wheel, sdist = tmp_path / "x.whl", tmp_path / "onnx_ops-0.2.0.tar.gz"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnx_ops/core/version.py", "")
        archive.writestr("onnx_ops/junk.py", "")
        archive.writestr("onnx_ops-0.2.0.dist-info/METADATA", metadata().as_string())
        archive.writestr("onnx_ops-0.2.0.dist-info/entry_points.txt", "onnx-ops = onnx_ops.__main__:main")
        archive.writestr("onnx_ops-0.2.0.dist-info/licenses/LICENSE", "")
    (tmp_path / "PKG-INFO").write_text(metadata(Summary="others").as_string())
    names = "LICENSE", "README.md", "Makefile", "pyproject.toml"
    for name in names:
        (tmp_path / name).touch()
    with tarfile.open(sdist, "w:gz") as archive:
        for name in ("PKG-INFO", "onnx_ops", "scripts", "CHANGELOG.md", *names):
            archive.add(tmp_path / name, f"onnx_ops-0.2.0/{name}")
        archive.add(tmp_path / "PKG-INFO", "onnx_ops-0.2.0/build/PKG-INFO")
    assert list(check.problems(wheel, sdist, tmp_path)) == [
        "CITATION.cff has version 0.1.0, expected 0.2.0",
        "the wheel lacks onnx_ops/py.typed",
        "the wheel has onnx_ops/junk.py",
        "the wheel has no py.typed",
        "wheel and sdist have different metadata",
        "the sdist lacks CITATION.cff",
        "the sdist has build",
    ]


def test_wheel_of_a_platform() -> None:
    """Only the extra `compile` requires what compiles kernels; the description stays as it is."""
    required = ["numba<1,>=0.60", "numpy", "onnxruntime-extensions>=0.10", "onnxruntime>=1"]
    fields = ["Name: onnx-ops", *(f"Requires-Dist: {line}" for line in required)]
    fields += ["Provides-Extra: cli", "Requires-Dist: typer; extra == 'cli'"]
    text = "\n".join(fields) + "\n\nRequires-Dist: numba\n"
    changed = platform_wheel.without_compiler(text)
    _, _, description = changed.partition("\n\n")
    assert description == "Requires-Dist: numba\n"
    found = Parser().parsestr(changed)
    assert found.get_all("Provides-Extra") == ["cli", "compile"]
    lines = found.get_all("Requires-Dist", [])
    assert [line for line in lines if "extra" not in line] == ["numpy", "onnxruntime>=1"]
    assert [line for line in lines if "'compile'" in line] == [
        "numba<1,>=0.60; extra == 'compile'", "onnxruntime-extensions>=0.10; extra == 'compile'",
    ]  # fmt: skip
    wheel = "Wheel-Version: 1.0\nGenerator: hatchling\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    assert platform_wheel.of_platform(wheel, "linux_x86_64").splitlines() == [
        "Wheel-Version: 1.0", "Generator: hatchling", "Root-Is-Purelib: false", "Tag: py3-none-linux_x86_64",
    ]  # fmt: skip
    project = {re.split(r"[<>=]", line)[0] for line in PROJECT["project"]["dependencies"]}
    assert project.issuperset(platform_wheel.COMPILING)
