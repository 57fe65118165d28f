"""Python for 64-bit ARM under emulation, which tries wheels for it on a machine of another kind.

    python -m scripts.release.emulation WHEEL [ARGUMENTS OF PYTHON ...]

installs a wheel, its dependencies and pytest, and runs Python. There onnx_ops has the library of the wheel, also where
it is that of the current folder: `-m pytest -k kernel tests/results/test_ops_results.py`. Starting other
processes fails.

It needs Debian with apt-get and qemu-user-static. Debian's Python for ARM is unpacked in build/release/aarch64; nothing
else of the system is changed, and no privileges are needed.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from onnx_ops.integrations.prebuilt import FOLDER, VARIABLE, library_name
from scripts.release.check import ENVIRONMENTS, clean_environment, run

EMULATOR = "qemu-aarch64-static"
MACHINE = "aarch64"
ROOT = ENVIRONMENTS / MACHINE
PACKAGES = "python3", "libstdc++6"
TESTING = "hypothesis", "pytest", "safetensors"
"""What the tests of the ops need besides the wheel."""
PROCESSOR = "cortex-a72"
"""The emulated processor: ARMv8.0-A, without any extension that the library must do without."""
INFORMATION = """\
processor	: 0
Features	: fp asimd evtstrm aes pmull sha1 sha2 crc32 cpuid
CPU implementer	: 0x41
CPU architecture: 8
CPU variant	: 0x0
CPU part	: 0xd08
CPU revision	: 3
"""
"""/proc/cpuinfo of that processor: onnxruntime reads it, and ends with the file of another architecture."""
OLDEST_GLIBC, GLIBC = 17, 36
"""Minor versions of glibc 2: the oldest with wheels for ARM, and that of Debian 12."""


def is_possible() -> bool:
    """Whether this system has what is needed."""
    return all(map(shutil.which, (EMULATOR, "apt-get", "dpkg-deb")))


def command() -> list[str | Path]:
    """The command of the emulated Python, which is unpacked if it is not there yet."""
    if not (ROOT / "proc").exists():
        _unpack()
    return [EMULATOR, "-L", ROOT, "-cpu", PROCESSOR, _python()]


def _python() -> Path:
    (python,) = (path for path in (ROOT / "usr" / "bin").glob("python3.*") if path.suffix[1:].isdigit())
    return python


def _unpack() -> None:
    apt = ROOT.with_name(f"{MACHINE}-apt")
    for folder in ("state/lists/partial", "cache/archives/partial"):
        (apt / folder).mkdir(parents=True, exist_ok=True)
    (apt / "state" / "status").touch()  # of no package that is installed
    settings = {
        "APT::Architecture": "arm64",
        "APT::Architectures::": "arm64",
        "APT::Install-Recommends": "false",
        "APT::Sandbox::User": "",
        "Dir::State": apt / "state",
        "Dir::State::status": apt / "state" / "status",
        "Dir::Cache": apt / "cache",
    }
    configuration = apt / "apt.conf"
    lines = ["#clear APT::Architectures;", *(f'{name} "{value}";' for name, value in settings.items())]
    configuration.write_text("\n".join(lines))
    environment = {**clean_environment(), "APT_CONFIG": str(configuration)}
    for arguments in (["update"], ["install", "--download-only", "--yes", *PACKAGES]):
        subprocess.run(["apt-get", "--quiet=2", *arguments], env=environment, check=True)
    for archive in sorted((apt / "cache" / "archives").glob("*.deb")):
        run(["dpkg-deb", "--extract", archive, ROOT])
    (ROOT / "proc").mkdir()
    (ROOT / "proc" / "cpuinfo").write_text(INFORMATION)


def _packages() -> Path:
    """The folder of installed packages."""
    return ROOT / "usr" / "local" / "lib" / _python().name / "dist-packages"


def install(*requirements: str | Path) -> None:
    """Install packages, or wheels with extras, for the emulated Python."""
    command()
    version = _python().name.removeprefix("python")
    platforms = [f"manylinux_2_{minor}_{MACHINE}" for minor in range(OLDEST_GLIBC, GLIBC + 1)]
    tags = [*platforms, f"manylinux2014_{MACHINE}"]
    abis = [f"cp{version.replace('.', '')}", "abi3", "none"]
    run(
        [
            *(
                sys.executable,
                "-m",
                "pip",
                "install",
                "--quiet",
                "--upgrade",
                "--only-binary=:all:",
                "--target",
                _packages(),
            ),
            *("--implementation", "cp", "--python-version", version),
            *(part for tag in tags for part in ("--platform", tag)),
            *(part for abi in abis for part in ("--abi", abi)),
            *requirements,
        ]
    )


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    wheel, *arguments = sys.argv[1:]
    install(f"{wheel}[cli]", *TESTING)
    library = _packages() / FOLDER.relative_to(FOLDER.parents[2]) / library_name()
    environment = {**clean_environment(), VARIABLE: str(library)}
    return subprocess.run([*command(), *arguments], env=environment).returncode if arguments else 0


if __name__ == "__main__":
    sys.exit(main())
