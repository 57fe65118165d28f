"""A second version of an op, added as CONTRIBUTING says, and files of both where there is one version and both."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, parser

import onnx_ops
from onnx_ops.core.domain import KernelName, kernel_name

ROOT = Path(__file__).parents[2]
X = np.array([-1, 0.25, 0.75], np.float32)
FIRST, SECOND = np.array([-1, 0, 0.75], np.float32), np.array([1, 0, -0.75], np.float32)
"""What the versions make of X."""

MODEL = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : {}]>
    graph (float[3] x) => (float[3] o) {{ o = aclnn.Hardshrink (x) }}"""

CHILD = f"""
import sys
import numpy as np, onnx, onnxruntime as ort
from pathlib import Path
import onnx_ops
from onnx_ops.runtime import compiler

# The number of the version is in no native code: what was compiled with the other number serves.
sources, domain = compiler.sources, Path(sys.argv[2])
compiler.sources = lambda file: [domain if path.name == domain.name else path for path in sources(file)]
folder, second = Path(sys.argv[1]), onnx.parser.parse_model({MODEL.format(2)!r})
first = onnx.parser.parse_model({MODEL.format(1)!r})
onnx.save(onnx_ops.link(second), folder / "second.onnx")
onnx.save(onnx_ops.link(first), folder / "first_again.onnx")
x = np.array({X.tolist()}, np.float32)
for name in ("first", "other_body", "bare", "second"):
    path = str(folder / f"{{name}}.onnx")
    sessions = [onnx_ops.InferenceSession(path)]
    sessions += [ort.InferenceSession(path, onnx_ops.session_options())] if name != "bare" else []
    for session in sessions:
        print(name, session.run(None, {{"x": x}})[0].tolist())
print([onnx.defs.get_schema("Hardshrink", version, "aclnn").since_version for version in (1, 2)])
for imported in (1, 2):
    backward = {MODEL!r}.format(imported).replace("Hardshrink (x)", "HardshrinkBackward (x, x)")
    print(onnx_ops.link(onnx.parser.parse_model(backward)).functions[0].name)
merged = onnx.load(folder / "bare.onnx")
merged.opset_import.append(onnx_ops.opset_import())
try:
    onnx_ops.link(merged)
except onnx_ops.LinkError as refusal:
    print(refusal)
"""


def with_second_version(folder: Path) -> Path:
    """A copy of the package in which Hardshrink has a second version, which changes the sign too."""
    shutil.copytree(ROOT / "onnx_ops", folder / "onnx_ops", ignore=shutil.ignore_patterns("__pycache__", "torch"))
    family, domain = folder / "onnx_ops" / "ops" / "hardshrink", folder / "onnx_ops" / "core" / "domain.py"
    text = (family / "hardshrink.py").read_text()
    for before, after in (
        ("attributes=(lambd_attribute(),),\n", "attributes=(lambd_attribute(),),\n    version=2,\n"),
        ("else x\n", "else -x\n"),
        ("is_small, 0.0, x,", "is_small, 0.0, x * -1.0,"),
    ):
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    (family / "hardshrink_2.py").write_text(text)
    text = domain.read_text()
    domain.write_text(text.replace("OPSET_VERSION = 1\n", "OPSET_VERSION = 2\n"))
    assert domain.read_text() != text
    return folder


def save_files_of_the_first(folder: Path) -> None:
    linked = onnx_ops.link(parser.parse_model(MODEL.format(1)))
    onnx.save(linked, folder / "first.onnx")
    body = next(f for f in linked.functions if f.name == "aclnn_Hardshrink_v1")
    del body.node[:]
    body.node.append(helper.make_node("Exp", body.input, body.output))
    onnx.save(linked, folder / "other_body.onnx")  # whose numbers show whether the kernel runs
    bare = parser.parse_model(MODEL.format(1).replace('"aclnn" : 1', '"ai.onnx.contrib" : 1'))
    bare.graph.node[0].domain, bare.graph.node[0].op_type = "ai.onnx.contrib", "aclnn_Hardshrink_v1"
    onnx.save(bare, folder / "bare.onnx")


def test_files_of_two_versions(tmp_path: Path) -> None:
    save_files_of_the_first(tmp_path)
    done = subprocess.run(
        [sys.executable, "-P", "-c", CHILD, str(tmp_path), str(ROOT / "onnx_ops" / "core" / "domain.py")],
        env=os.environ | {"PYTHONPATH": str(with_second_version(tmp_path))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert not done.returncode, done.stderr
    first, second = f"{FIRST.tolist()}", f"{SECOND.tolist()}"
    assert done.stdout.splitlines() == [
        *["first " + first] * 2,
        *["other_body " + first] * 2,
        "bare " + first,
        *["second " + second] * 2,
        "[1, 2]",
        *["aclnn_HardshrinkBackward_v1"] * 2,
        "the model calls the kernel of version 1 of Hardshrink and imports version 2 of domain aclnn, expected the"
        " import that it was linked with",
    ]
    again = onnx.load(tmp_path / "first_again.onnx")
    assert again.SerializeToString() == onnx.load(tmp_path / "first.onnx").SerializeToString()

    # This process has only the first version.
    path = str(tmp_path / "second.onnx")
    assert "aclnn_Hardshrink_v2" in [f.name for f in onnx.load(path).functions]
    for options in (None, onnx_ops.session_options()):
        np.testing.assert_array_equal(ort.InferenceSession(path, options).run(None, {"x": X})[0], SECOND)
    for refusing in (onnx_ops.link, onnx_ops.InferenceSession):
        with pytest.raises(onnx_ops.LinkError, match="imports version 2 of domain aclnn, expected at most 1: update"):
            refusing(path)


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("aclnn_KlDiv_v2", ("", "KlDiv", 2)),
        ("my_aclnn_KlDiv_v13", ("my_", "KlDiv", 13)),
        ("aclnn_KlDiv", ("", "KlDiv", 1)),
        ("aclnn_DropoutV3", ("", "DropoutV3", 1)),
        ("aclnn_DropoutV3_v0", None),
        ("aclnn_", None),
        ("KlDiv_v2", None),
    ],
)
def test_names_of_kernels(name: str, parts: tuple[str, str, int] | None) -> None:
    assert KernelName.parsed(name) == parts
    if parts and "_v" in name:
        assert parts[0] + kernel_name(*parts[1:]) == name
