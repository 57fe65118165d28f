"""Builds wheel and sdist, examines them, and runs what users run in fresh environments: `make release-check`.

    python -m scripts.release.check [--packages-of ENVIRONMENT]

The environment must have the extra `release`. Each of both files is installed, with its dependencies and the command
line, into a fresh environment in build/release. There run the examples without PyTorch, the program `onnx-ops`, and
the README's code, if the environment `--packages-of` has PyTorch, which is taken from there. Both files stay in dist.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
ENVIRONMENTS = ROOT / "build" / "release"
EXAMPLES = "op_on_arrays", "op_in_a_graph", "step_by_hand"
VERSIONS = {
    "onnx_ops/core/version.py": r'^__version__ = "(.+)"$',
    "CHANGELOG.md": r"^## (\d\S*)$",
    "CITATION.cff": r"^version: (\S+)$",
    "scripts/release/recipe.yaml": r'^  version: "(.+)"$',
}
"""Where the version stands; the first one is the source."""


def versions(root: Path = ROOT) -> dict[str, str]:
    """The first version that each of the files names, or the empty string."""
    found = {
        name: re.search(pattern, (root / name).read_text("utf-8"), re.MULTILINE) for name, pattern in VERSIONS.items()
    }
    return {name: match[1] if match else "" for name, match in found.items()}


def problems(wheel: Path, sdist: Path, root: Path = ROOT) -> Iterator[str]:
    """What a release must not have, in the two built files of the sources in `root`."""
    version = versions(root)["onnx_ops/core/version.py"]
    for name, other in versions(root).items():
        if other != version:
            yield f"{name} has version {other or 'none'}, expected {version}"

    sources = {path.relative_to(root).as_posix() for path in (root / "onnx_ops").rglob("*") if path.is_file()}
    sources = {name for name in sources if "__pycache__" not in name}
    with zipfile.ZipFile(wheel) as archive:
        files = set(archive.namelist())
        (folder,) = {name.split("/")[0] for name in files if ".dist-info/" in name}
        metadata = Parser().parsestr(archive.read(f"{folder}/METADATA").decode())
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    code = {name for name in files if not name.startswith(f"{folder}/")}
    yield from (f"the wheel lacks {name}" for name in sorted(sources - code))
    yield from (f"the wheel has {name}" for name in sorted(code - sources))
    if "onnx_ops/py.typed" not in code:
        yield "the wheel has no py.typed"
    if f"{folder}/licenses/LICENSE" not in files:
        yield "the wheel has no LICENSE"
    if "onnx-ops = onnx_ops.__main__:main" not in entry_points:
        yield "the wheel has no program onnx-ops"
    yield from problems_of_metadata(metadata, version)

    with tarfile.open(sdist) as archive:
        contents = {name.partition("/")[2] for name in archive.getnames()}
        head = archive.extractfile(f"{sdist.name.removesuffix('.tar.gz')}/PKG-INFO")
        assert head is not None
        if Parser().parsestr(head.read().decode()).items() != metadata.items():
            yield "wheel and sdist have different metadata"
    wanted = sources | {"LICENSE", "README.md", "CHANGELOG.md", "CITATION.cff", "Makefile", "pyproject.toml", *VERSIONS}
    yield from (f"the sdist lacks {name}" for name in sorted(wanted - contents))
    folders = {name.split("/")[0] for name in contents if "/" in name}
    yield from (
        f"the sdist has {name}" for name in sorted(folders - {"onnx_ops", "models", "tests", "scripts", "docs"})
    )


def problems_of_metadata(metadata: Message, version: str) -> Iterator[str]:
    """Fields that are missing or wrong, in the core metadata of a distribution."""
    fields = (
        "Name",
        "Summary",
        "License-Expression",
        "License-File",
        "Requires-Python",
        "Author",
        "Keywords",
        "Classifier",
    )
    yield from (f"the metadata have no {field}" for field in fields if not metadata.get(field))
    if metadata["Version"] != version:
        yield f"the metadata have version {metadata['Version']}, expected {version}"
    for url in metadata.get_all("Project-URL", []):
        if not url.partition(", ")[2].startswith("https://"):
            yield f"'{url}' is no link"
    oldest = metadata.get("Requires-Python", "").removeprefix(">=")
    if f"Programming Language :: Python :: {oldest}" not in metadata.get_all("Classifier", []):
        yield f"there is no classifier for Python {oldest}"
    if metadata.get("Description-Content-Type") != "text/markdown" or not str(metadata.get_payload()).strip():
        yield "there is no description in Markdown"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages-of", type=Path, metavar="ENVIRONMENT", help="has PyTorch for the README's code")
    options = parser.parse_args()

    for folder in (DIST, ENVIRONMENTS):
        shutil.rmtree(folder, ignore_errors=True)
    run([sys.executable, "-m", "build", "--outdir", str(DIST), str(ROOT)])
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    found = list(problems(wheel, sdist))
    for problem in found:
        print(problem, file=sys.stderr)
    if found:
        return 1
    run([sys.executable, "-m", "twine", "check", "--strict", str(wheel), str(sdist)])
    run([Path(sys.executable).with_name("cffconvert"), "--validate", "-i", str(ROOT / "CITATION.cff")])
    packages = torch_packages(options.packages_of)
    for distribution in (wheel, sdist):
        check_installed(distribution, packages)
    print(
        f"{wheel.name} and {sdist.name} can be released" + ("" if packages else "; README.md was not run: no PyTorch")
    )
    return 0


def torch_packages(environment: Path | None) -> Path | None:
    """The folder of packages of an environment that has PyTorch and onnxscript."""
    if environment is None:
        return None
    for folder in environment.glob("lib/python3.*/site-packages"):
        if (folder / "torch").is_dir() and (folder / "onnxscript").is_dir():
            return folder.absolute()
    return None


def check_installed(distribution: Path, packages: Path | None) -> None:
    """Install a wheel or sdist into a fresh environment, and run there what users run.

    Args:
        distribution: path of the file.
        packages: a folder with PyTorch's packages, for the README's code; None leaves it out.
    """
    root = ENVIRONMENTS / ("wheel" if distribution.suffix == ".whl" else "sdist")
    venv.create(root / "environment", with_pip=True)
    python = root / "environment" / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", f"{distribution}[cli]"])
    run([python, "-m", "pip", "check"])
    place = output([python, "-I", "-c", "import onnx_ops; print(onnx_ops.__file__)"], root).strip()
    if not Path(place).is_relative_to(root):
        raise SystemExit(f"what was imported is {place}, expected a file in {root}")
    program = root / "environment" / "bin" / "onnx-ops"
    run([program, "--version"], root)
    run([program, "doctor"], root)
    for name in EXAMPLES:
        run([python, "-I", ROOT / "scripts" / "examples" / f"{name}.py"], root)
    if packages is not None:
        site = Path(output([python, "-I", "-c", "import site; print(site.getsitepackages()[0])"], root).strip())
        (site / "packages_with_torch.pth").write_text(f"{packages}\n")  # searched after its own
        check_readme(python, root)


def check_readme(python: Path, folder: Path) -> None:
    """Run the README's code, which must print what the README shows."""
    text = (ROOT / "README.md").read_text("utf-8")
    code, shown = ("".join(re.findall(rf"```{kind}\n(.*?)```", text, re.DOTALL)) for kind in ("python", "text"))
    (folder / "readme.py").write_text(code)
    printed = output([python, "-I", "readme.py"], folder)
    if printed != shown:
        raise SystemExit(f"README.md shows\n{shown}but its code prints\n{printed}")
    print("README.md: its code prints what it shows")


def run(command: Sequence[str | Path], folder: Path = ROOT) -> None:
    """Run a command; its failure is the failure of the check."""
    print("$", *(Path(part).name if os.path.isabs(part) else part for part in map(str, command)), flush=True)
    status = subprocess.run(command, cwd=folder, env=clean_environment(), check=False).returncode
    if status:
        raise SystemExit(status)


def output(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command, and return what it prints."""
    return subprocess.run(
        command, cwd=folder, env=clean_environment(), check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def clean_environment() -> dict[str, str]:
    """The environment variables without paths of Python, such as that of the checkout."""
    return {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}


if __name__ == "__main__":
    missing = [name for name in ("build", "cffconvert", "twine") if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(f"{', '.join(missing)}: not installed; run `make release-check`")
    sys.exit(main())
