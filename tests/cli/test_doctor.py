"""The command `doctor`: what it says of versions, kernels and the cache."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path

import built_library
import numpy as np
import onnxruntime as ort
import pytest
import typer
from command_line import FAILED, answer, run

import onnx_ops
from onnx_ops.cli import diagnosis
from onnx_ops.integrations import prebuilt
from onnx_ops.library.objects import NATIVE
from onnx_ops.ops import OPS


def test_all_ops_run() -> None:
    examined = answer("doctor")
    assert examined["ok"]
    assert set(examined) == {"ok", "platform", "versions", "unsupported", "kernels", "cache", "outcomes"}
    assert examined["unsupported"] == []
    assert examined["versions"]["onnx-ops"] == onnx_ops.__version__
    assert examined["versions"]["onnxruntime"] == ort.__version__
    assert examined["kernels"] == {"registered": True, "reason": None, "library": None, "level": None}
    assert examined["cache"]["writable"]
    assert examined["cache"]["problem"] is None
    assert Path(examined["cache"]["path"]).is_dir()
    ran = {(o["op"], o["way"]): (o["status"], o["detail"]) for o in examined["outcomes"]}
    ways = ("kernel", "portable body", "inlined")
    assert ran == {(op, way): ("passed", None) for op in OPS for way in ways}


@pytest.mark.usefixtures("one_op")
def test_doctor_without_kernels(no_kernels: str) -> None:
    examined = answer("doctor")
    assert examined["ok"]
    assert examined["kernels"] == {"registered": False, "reason": no_kernels, "library": None, "level": None}
    assert {(o["way"], o["status"]) for o in examined["outcomes"]} == {
        ("kernel", "unavailable"),
        ("portable body", "passed"),
        ("inlined", "passed"),
    }
    text = run("doctor").stdout
    assert f"not registered: {no_kernels}" in text
    assert "all ops run here, as function bodies; there are no kernels" in text


@pytest.mark.skipif(not built_library.can_be_built(), reason="a library cannot be built here")
@pytest.mark.usefixtures("one_op")
def test_doctor_with_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which kernels are used, and runs the ops on those that are compiled here too."""
    path = str(built_library.library())
    monkeypatch.setenv(prebuilt.VARIABLE, path)
    examined = answer("doctor")
    assert examined["kernels"] == {"registered": True, "reason": None, "library": path, "level": NATIVE}
    ways = ("kernel", "portable body", "inlined", diagnosis.COMPILED)
    assert {(o["way"], o["status"]) for o in examined["outcomes"]} == {(way, "passed") for way in ways}
    text = run("doctor").stdout
    assert f"for {NATIVE}" in text
    assert "all ops run here, as kernels of the library, as kernels compiled here and as function bodies" in text
    monkeypatch.setattr(diagnosis, "_compiled_here", lambda model: ort.InferenceSession(b"no model"))
    assert [o["way"] for o in answer("doctor", code=FAILED)["outcomes"] if o["detail"]] == [diagnosis.COMPILED]
    assert os.environ[prebuilt.VARIABLE] == path


def test_doctor_without_numba() -> None:
    program = """
import sys
sys.modules["numba"] = None
from onnx_ops.cli import diagnosis
from onnx_ops.cli.app import app
diagnosis.OPS = {"KlDivBackward": diagnosis.OPS["KlDivBackward"]}
app(["doctor", "--json"])"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    examined = json.loads(done.stdout)
    assert examined["ok"]
    assert "Numba cannot be imported" in examined["kernels"]["reason"]
    assert examined["kernels"]["registered"] is False


def test_doctor_finds_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    op = OPS["KlDivBackward"]
    wrong = dataclasses.replace(op, example=dataclasses.replace(op.example, outputs={"out": [7.0]}))
    monkeypatch.setattr(diagnosis, "OPS", {op.name: wrong})
    monkeypatch.setitem(diagnosis.WAYS, "inlined", lambda model: ort.InferenceSession(b"no model"))
    examined = answer("doctor", code=FAILED)
    assert [o["status"] for o in examined["outcomes"]] == ["failed"] * 3
    assert "expected [7.0]" in examined["outcomes"][0]["detail"]
    assert "InvalidProtobuf" in examined["outcomes"][2]["detail"]
    assert run("doctor", code=FAILED).stdout.endswith("3 failures\n")


def test_doctor_of_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    blocked = tmp_path / "a file"
    blocked.touch()
    program = "from onnx_ops.cli.diagnosis import _cache; print(_cache())"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"ONNX_OPS_CACHE_DIR": str(blocked)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.startswith(f"Cache(path={str(blocked)!r}, writable=False, problem=")
    assert "File exists" in done.stdout


@pytest.mark.usefixtures("one_op")
def test_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(diagnosis, "PACKAGES", ("onnxruntime", "no-such-package"))
    assert answer("doctor")["versions"]["no-such-package"] is None


@pytest.mark.usefixtures("one_op")
def test_doctor_names_versions_that_are_not_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    required = [
        "onnxruntime>=1000",
        "numpy<1,>=0.5",
        "onnx>=1",
        "numba>=1000; python_version < '3'",
        "pytest>=1000; extra == 'test'",
        "typer>=1000; extra == 'cli'",
        "no-such-package>=1",
    ]
    monkeypatch.setattr(importlib.metadata, "requires", {"onnx-ops": required}.__getitem__)
    examined = answer("doctor", code=FAILED)
    assert not examined["ok"]
    assert examined["unsupported"] == [
        {"package": "onnxruntime", "version": ort.__version__, "supported": ">=1000"},
        {"package": "numpy", "version": np.__version__, "supported": "<1,>=0.5"},
        {"package": "typer", "version": typer.__version__, "supported": ">=1000"},
    ]
    assert {outcome["status"] for outcome in examined["outcomes"]} == {"passed"}
    text = run("doctor", code=FAILED).stdout
    assert f"onnxruntime {ort.__version__} is not supported, onnxruntime>=1000 is\n" in text


@pytest.mark.usefixtures("one_op")
def test_doctor_of_onnxruntime_under_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """onnxruntime-gpu brings the same module."""
    versions = {"onnxruntime-gpu": ort.__version__, **{name: "1" for name in diagnosis.PACKAGES}}
    del versions["onnxruntime"]

    def version(name: str) -> str:
        if name not in versions:
            raise importlib.metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: ["onnxruntime>=1000"])
    assert [p["version"] for p in answer("doctor", code=FAILED)["unsupported"]] == [ort.__version__]


@pytest.mark.usefixtures("one_op")
def test_doctor_of_a_package_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run from a checkout: there is no metadata that says what it requires."""

    def missing(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", missing)
    assert answer("doctor")["unsupported"] == []
