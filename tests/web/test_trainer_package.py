"""The npm package of the trainer in JavaScript: what it ships and declares."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from onnxruntime_web import PROGRAM, SECONDS, Node

PACKAGE = PROGRAM.parent / "training"

CONSUMER = """
import * as ort from "onnxruntime-web";
import { StepError, Trainer, type Reported, type TensorType } from "onnx-ops-trainer";

const trainer = await Trainer.create(ort, new Uint8Array(), { weights: new Blob([]), executionProviders: ["webgpu"] });
const types: Record<string, TensorType> = trainer.batchInputs;
const batch = { x: new ort.Tensor("float32", new Float32Array(3), [1, 3]) };
const reported: Reported<ort.Tensor> = await trainer.step(batch);
const loss: ort.Tensor = reported.loss;
const rates: number | number[] = trainer.learningRate;
trainer.learningRate = [0.1, 0.2];
trainer.seed = 3;
const seed: bigint = trainer.seed;
const file: Uint8Array = await trainer.save({ metadata: { epoch: "1" } });
const metadata: Record<string, string> = await trainer.load(new Blob([]), { strict: false });
const { missing, unexpected } = trainer.loadState(await trainer.state());
const model: Uint8Array = await trainer.export({ averaged: true });
await trainer.evaluate(batch, "train");
await trainer.release();
// @ts-expect-error: a batch has tensors
await trainer.step({ x: 3 });
// @ts-expect-error: modes have names
await trainer.evaluate(batch, "test");
const error: Error = new StepError("");
export { error, file, loss, metadata, missing, model, rates, seed, types, unexpected };
"""


def package(folder: Path) -> Path:
    """A folder of a program that has the package among its node_modules."""
    modules = folder / "node_modules"
    modules.mkdir()
    for path in (PROGRAM.parent / "node_modules").iterdir():
        (modules / path.name).symlink_to(path.resolve())
    (modules / "onnx-ops-trainer").symlink_to(PACKAGE)
    return folder


def test_declarations_name_what_there_is(node: Node, tmp_path: Path) -> None:
    program = """
import * as own from "onnx-ops-trainer";
const members = Object.entries(Object.getOwnPropertyDescriptors(own.Trainer.prototype));
console.log(JSON.stringify({ exports: Object.keys(own), members: members.map(([name]) => name) }));
"""
    (package(tmp_path) / "program.mjs").write_text(program)
    ran = subprocess.run(
        ["node", "--preserve-symlinks", "program.mjs"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    found = json.loads(ran.stdout)
    text = (PACKAGE / "trainer.d.ts").read_text()
    assert sorted(re.findall(r"^export (?:declare )?class (\w+)", text, re.MULTILINE)) == sorted(found["exports"])
    body = re.sub(r"/\*\*.*?\*/", "", text[text.index("class Trainer") :], flags=re.DOTALL)
    declared = set(re.findall(r"^  (?:get |set )?(\w+)(?:<.*>)?\(", body, re.MULTILINE))
    assert declared == set(found["members"]) - {"constructor"}
    described = json.loads((PACKAGE / "package.json").read_text())
    shipped = {path.name for path in PACKAGE.iterdir() if path.suffix in (".js", ".ts")} | {"README.md"}
    assert set(described["files"]) == shipped
    assert set(described["peerDependencies"]) == {"onnxruntime-node", "onnxruntime-web"}
    assert "dependencies" not in described


@pytest.mark.skipif(
    not (PROGRAM.parent / "node_modules" / "typescript").is_dir() and shutil.which("tsc") is None,
    reason="TypeScript is not installed",
)
def test_declarations_are_checked_by_typescript(tmp_path: Path) -> None:
    (package(tmp_path) / "program.ts").write_text(CONSUMER)
    local = PROGRAM.parent / "node_modules" / "typescript" / "bin" / "tsc"
    tsc = ["node", str(local)] if local.exists() else ["tsc"]
    options = ["--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2022,dom"]
    (tmp_path / "package.json").write_text('{"type": "module"}')
    ran = subprocess.run([*tsc, *options, "program.ts"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
