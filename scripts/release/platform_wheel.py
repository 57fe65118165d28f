"""Builds a wheel for one platform, with a library of the kernels, and tries it: `make wheel`.

    python -m scripts.release.platform_wheel [--target aarch64-linux] [--cpu baseline,v3,v4] [--library FILE]

The environment must have the extra `release`, and there must be a C compiler. Unlike the wheel for all platforms, this
one requires neither Numba nor onnxruntime-extensions: its extra `compile` does. Its platform is the oldest of manylinux
that has what the library needs, as auditwheel finds it. It is left in dist, and installed into a fresh environment in
build/release, in which examples run without Numba: under emulation if it is for aarch64, by `emulation`.
"""

from __future__ import annotations

import argparse
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from pathlib import Path

from onnx_ops.integrations.prebuilt import FOLDER, library_name
from onnx_ops.library.objects import own_target
from scripts.release import emulation
from scripts.release.check import DIST, ENVIRONMENTS, EXAMPLES, ROOT, output, run

COMPILING = "numba", "onnxruntime-extensions"
"""The packages that compile kernels and host them, which a library does in their place."""
EXTRA = "compile"
LARGEST = 200e6
"""Bytes of an environment with the wheel and its dependencies."""


def without_compiler(metadata: str) -> str:
    """Core metadata in which the packages that compile kernels are required by an extra only."""
    head, separator, description = metadata.partition("\n\n")
    lines = [
        f"{line}; extra == '{EXTRA}'" if re.match(rf"Requires-Dist: ({'|'.join(COMPILING)})\b", line) else line
        for line in head.splitlines()
    ]
    return "\n".join([*lines, f"Provides-Extra: {EXTRA}"]) + separator + description


def of_platform(wheel: str, platform: str) -> str:
    """The file WHEEL of a wheel for a platform, which any Python 3 can use."""
    lines = [line for line in wheel.splitlines() if line and not line.startswith(("Root-Is-Purelib:", "Tag:"))]
    return "\n".join([*lines, "Root-Is-Purelib: false", f"Tag: py3-none-{platform}", ""])


def build(library: Path, folder: Path, target: str) -> Path:
    """The wheel with a library for a target, in a folder."""
    run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT])
    (universal,) = folder.glob("*.whl")
    run([sys.executable, "-m", "wheel", "unpack", "--dest", folder, universal])
    (unpacked,) = (path for path in folder.iterdir() if path.is_dir())
    universal.unlink()
    place = unpacked / FOLDER.relative_to(ROOT)
    place.mkdir()
    shutil.copyfile(library, place / library_name())
    (info,) = unpacked.glob("*.dist-info")
    machine, _, system = target.partition("-")
    platform = f"linux_{machine}" if system == "linux" else re.sub(r"\W", "_", sysconfig.get_platform())
    for name, changed in (("METADATA", without_compiler), ("WHEEL", lambda text: of_platform(text, platform))):
        (info / name).write_text(changed((info / name).read_text("utf-8")), "utf-8")
    run([sys.executable, "-m", "wheel", "pack", "--dest-dir", folder, unpacked])
    (wheel,) = folder.glob("*.whl")
    if system != "linux":
        return wheel
    found = re.search(r'platform tag:\s+"([^"]+)"', output([sys.executable, "-m", "auditwheel", "show", wheel], folder))
    if found is None:
        raise SystemExit(f"auditwheel finds no platform for {wheel.name}")
    run([sys.executable, "-m", "wheel", "tags", "--remove", "--platform-tag", found[1], wheel])
    (wheel,) = folder.glob("*.whl")
    return wheel


def problems(wheel: Path) -> Iterator[str]:
    """What is wrong with a wheel once it is installed into a fresh environment."""
    root = ENVIRONMENTS / "platform"
    shutil.rmtree(root, ignore_errors=True)
    environment = root / "environment"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    start = time.monotonic()
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[cli]"])
    print(f"installed in {time.monotonic() - start:.0f} s")
    run([python, "-m", "pip", "check"])
    installed = output([python, "-m", "pip", "list", "--format", "freeze"], root)
    yield from (f"{name} is installed" for name in COMPILING if re.search(rf"^{name}==", installed, re.MULTILINE))
    files = (path for path in environment.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    size = sum(path.stat().st_size for path in files if not path.is_symlink())
    print(f"{size / 1e6:.0f} MB")
    if size > LARGEST:
        yield f"the environment has {size / 1e6:.0f} MB, expected at most {LARGEST / 1e6:.0f}"
    run_programs([python], root)


def run_programs(python: Sequence[str | Path], folder: Path) -> None:
    """Run the command line and examples by the command of a Python, in a folder."""
    run([*python, "-I", "-m", "onnx_ops", "doctor"], folder)
    for name in EXAMPLES:
        start = time.monotonic()
        run([*python, "-I", ROOT / "scripts" / "examples" / f"{name}.py"], folder)
        print(f"{name}: {time.monotonic() - start:.1f} s")


def emulated(wheel: Path) -> None:
    """Install a wheel for ARM for a Python under emulation, if this machine can, and run there what others run here."""
    if not emulation.is_possible():
        print(f"{wheel.name} is not tried: that needs apt-get and {emulation.EMULATOR}")
        return
    emulation.install(f"{wheel}[cli]")
    folder = ENVIRONMENTS / "emulated"
    folder.mkdir(exist_ok=True)
    run_programs(emulation.command(), folder)


def made(target: str, cpu: str, library: Path | None) -> Path:
    """The wheel for a target, in dist."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if library is None:
            library = folder / library_name()
            options = ["--cpu", cpu, "--target", target]
            run([sys.executable, "-m", "onnx_ops", "build-library", library, *options])
        (folder / "wheel").mkdir()
        wheel = build(library.absolute(), folder / "wheel", target)
        DIST.mkdir(exist_ok=True)
        return Path(shutil.copy(wheel, DIST))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    others = ("aarch64-linux", "x86_64-linux") if sys.platform == "linux" else ()
    parser.add_argument(
        "--target",
        default=own_target(),
        choices=sorted({own_target(), *others}),
        help="as `onnx-ops build-library` takes it",
    )
    parser.add_argument("--cpu", default="", help="levels of processors, as `onnx-ops build-library` takes them")
    parser.add_argument("--library", type=Path, help="one that has been built, instead of a new one")
    options = parser.parse_args()
    wheel = made(options.target, options.cpu, options.library)
    found: list[str] = []
    if options.target == own_target():
        found = list(problems(wheel))
    else:
        emulated(wheel)
    for problem in found:
        print(problem, file=sys.stderr)
    print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
