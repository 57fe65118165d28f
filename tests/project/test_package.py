"""The package as files: every op complete, nothing of one machine in it, and what a wheel holds."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from collections.abc import Iterable
from pathlib import Path

import onnx
import pytest

import onnx_ops
from onnx_ops import __main__ as program
from scripts import oldest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "onnx_ops"
CAPTURE = set((PACKAGE / "torch").rglob("*.py"))
PROCESSES = {PACKAGE / "mpi.py"}
SOURCES = sorted(p for folder in ("onnx_ops", "models", "scripts", "tests") for p in (ROOT / folder).rglob("*.py"))
SHIPPED = sorted(PACKAGE.rglob("*.py"))


def stem(op_type: str) -> str:
    """Snake case: KlDivBackward is kl_div_backward."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z0-9])(?=[A-Z][a-z])", "_", op_type).lower()


def test_stem() -> None:
    assert stem("KlDivBackward") == "kl_div_backward"
    assert stem("BinaryCrossEntropyWithLogitsBackward") == "binary_cross_entropy_with_logits_backward"
    assert stem("Conv2DBackward") == "conv2d_backward"


def test_every_op_has_its_files() -> None:
    for op_type in onnx_ops.OPS:
        assert len(list((PACKAGE / "ops").glob(f"*/{stem(op_type)}.py"))) == 1, op_type
        assert (ROOT / "tests" / "ops" / f"{stem(op_type)}.py").is_file(), op_type


def test_every_op_is_complete() -> None:
    for op_type, op in onnx_ops.OPS.items():
        assert op.name == op_type == op.schema.name
        assert op.reference.__module__.startswith("onnx_ops.ops."), op_type
        assert op.reference.__module__.endswith(f".{stem(op_type)}"), op_type
        assert op.reference.__doc__, op_type
        assert op.schema.doc, op_type


def test_every_file_of_ops_is_an_op() -> None:
    files = {p.stem for p in (PACKAGE / "ops").glob("*/*.py") if not p.stem.startswith("_")}
    assert files == {stem(op_type) for op_type in onnx_ops.OPS}


def test_no_path_of_one_machine() -> None:
    pattern = re.compile(r"""["'\s(=](/(?:home|root|tmp|work|Users|mnt|opt)/[\w.-]*)""")
    found = {str(path.relative_to(ROOT)): pattern.findall(path.read_text(encoding="utf-8")) for path in SOURCES}
    assert not {path: paths for path, paths in found.items() if paths}


def test_modules_say_what_they_are_for_and_stand_alone() -> None:
    for path in SHIPPED:
        text = path.read_text(encoding="utf-8")
        assert text.lstrip().startswith('"""'), path
        elsewhere = "" if path in CAPTURE else "|torch|onnxscript|onnx_ir"
        pattern = rf"^\s*(from|import) (models|tests|scripts|pytest{elsewhere})\b"
        assert not re.search(pattern, text, re.MULTILINE), path


def packages(requirements: Iterable[str]) -> set[str]:
    """The names that the requirements are imported by."""
    return {re.split(r"[<>=!~\[; ]", requirement)[0].replace("-", "_") for requirement in requirements}


def imported(paths: Iterable[Path]) -> set[str]:
    """The packages that the files import, but for Python's own and this one."""
    text = "\n".join(p.read_text(encoding="utf-8") for p in paths)
    found = set(re.findall(r"^\s*(?:from|import) (\w+)", text, re.MULTILINE))
    return found - set(sys.stdlib_module_names) - {"onnx_ops"}


def test_requirements_are_those_of_the_imports() -> None:
    """What only the command line imports is in the extra of that name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = packages(project["dependencies"])
    extra, plot, capture, mpi, data, tensorboard = (
        packages(project["optional-dependencies"][name])
        for name in ("cli", "plot", "torch", "mpi", "data", "tensorboard")
    )
    command_line = set((PACKAGE / "cli").glob("*.py"))
    # `doctor`, which reads the bounds with packaging, can also be had from Python.
    optional = {PACKAGE / "fitting" / name for name in ("arrow.py", "logs.py", "progress.py", "sources.py")}
    shown = set(SHIPPED) - command_line - CAPTURE - PROCESSES - optional
    library = imported(shown | {PACKAGE / "cli" / "diagnosis.py"})
    assert library <= required | {"llvmlite"}  # llvmlite is Numba's
    assert required - {"onnxruntime_extensions"} <= library  # whose library is found without importing it
    assert imported(command_line) - required == extra | plot
    assert imported(optional) - required == data | tensorboard | {"rich"}  # which shows the progress where it is there
    assert imported(CAPTURE) - required == capture | {"sympy"}  # which is PyTorch's
    assert imported(PROCESSES) - required == mpi - {"mpich"}  # the library, and the launcher
    assert extra == set(program.REQUIRED)


def start_program(without: Iterable[str], *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program `onnx-ops` as its script does, as if the packages `without` were not installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, function = project["scripts"]["onnx-ops"].partition(":")
    script = f"""
import sys
sys.modules.update(dict.fromkeys({list(without)}))
from {module} import {function}
{function}()
"""
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


def test_program() -> None:
    done = start_program((), "--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"onnx-ops {onnx_ops.__version__}\n", "")


@pytest.mark.parametrize("missing", [["rich"], ["typer"], ["rich", "typer"]], ids=" ".join)
def test_program_says_that_its_extra_is_missing(missing: list[str]) -> None:
    done = start_program(missing, "list")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"onnx-ops: the command line needs packages that are not installed: {', '.join(missing)}. "
        "Install them with: pip install 'onnx-ops[cli]'\n"
    )


def test_pins_of_the_oldest_versions() -> None:
    extras = {"demo": ["onnx-ops[cli]", "tqdm>=4.67"], "test": ["pytest>=9"]}
    dependencies = ["numba>=0.60", "numpy>=1.26,<3"]
    project = {"name": "onnx-ops", "dependencies": dependencies, "optional-dependencies": extras}
    assert oldest.pins(project) == ["numba==0.60", "numpy==1.26", "tqdm==4.67"]
    with pytest.raises(ValueError, match="'numba<1' does not begin with a lower bound"):
        oldest.pins({"name": "onnx-ops", "dependencies": ["numba<1"]})


def test_installed_version_is_that_of_the_package() -> None:
    assert importlib.metadata.version("onnx-ops") == onnx_ops.__version__


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.Path:
    if not all(map(importlib.util.find_spec, ("hatchling", "hatch_fancy_pypi_readme"))):
        pytest.skip("hatchling or its plugin is not installed, and a build in isolation would download them")
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        str(ROOT),
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(folder),
    ]
    subprocess.run(command, check=True, timeout=120)
    (built,) = folder.glob("*.whl")
    return zipfile.Path(built)


def test_wheel_holds_the_package_and_nothing_else(wheel: zipfile.Path) -> None:
    names = set(wheel.root.namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert {n.split("/")[0] for n in names - metadata} == {"onnx_ops"}
    assert {n for n in names if n.endswith(".py")} == {str(p.relative_to(ROOT)) for p in SHIPPED}
    assert "onnx_ops/py.typed" in names
    assert any(n.endswith("LICENSE") for n in metadata)


def test_description_has_no_links_to_files(wheel: zipfile.Path) -> None:
    """Package indexes show it without the repository around it."""
    (metadata,) = [name for name in wheel.root.namelist() if name.endswith(".dist-info/METADATA")]
    description = wheel.root.read(metadata).decode().partition("\n\n")[2]
    assert description.startswith("# onnx_ops\n")
    assert "[aclnn](https://" in description
    assert "[the guide]" in (ROOT / "README.md").read_text()
    assert "- From PyTorch: the guide, layers and functions" in description
    assert not re.findall(r"\]\((?!https:|#)", description)


def test_type_checkers_see_the_types_of_an_installed_wheel(wheel: zipfile.Path, tmp_path: Path) -> None:
    """mypy, for a program of somebody else's in an environment that has the wheel."""
    pytest.importorskip("mypy")
    venv.create(tmp_path)
    paths = sysconfig.get_paths("venv", vars={"base": str(tmp_path), "platbase": str(tmp_path)})
    wheel.root.extractall(paths["purelib"])
    (tmp_path / "user.py").write_text("import onnx_ops\nonnx_ops.OPSET_VERSION.upper()\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", f"{paths['scripts']}/python", "user.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout.splitlines() == [
        'user.py:2: error: "int" has no attribute "upper"  [attr-defined]',
        "Found 1 error in 1 file (checked 1 source file)",
    ], done.stderr


def test_no_op_has_the_name_of_one_of_onnx() -> None:
    """onnx.reference cannot be imported once two domains have schemas of one name."""
    others = {schema.name for schema in onnx.defs.get_all_schemas_with_history() if schema.domain != onnx_ops.DOMAIN}
    assert not others & set(onnx_ops.OPS)
    subprocess.run([sys.executable, "-W", "error", "-c", "import onnx_ops, onnx.reference"], check=True)


@pytest.mark.parametrize("missing", ["torch", pytest.param("onnxscript", marks=pytest.mark.full)])
def test_capture_says_that_its_extra_is_missing(missing: str) -> None:
    script = f"import sys; sys.modules['{missing}'] = None; import onnx_ops; import onnx_ops.torch"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    package = missing if importlib.util.find_spec("torch") else "torch"
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: onnx_ops.torch needs {package}, which cannot be imported. Install what it needs with:"
        " pip install 'onnx-ops[torch]'"
    )
    assert done.returncode == 1
