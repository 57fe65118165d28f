"""Weights in files of pretrained models: one safetensors file, several with an index, or a folder with either."""

from __future__ import annotations

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy
import steps
from backends import assert_same_bits, kernel_options
from linear_oracle import State

from onnx_ops import StepError, Trainer
from onnx_ops.core.step_format import NEXT

WEIGHT, BIAS, MEAN = "linear.weight", "linear.bias", "mean"


def pretrained(seed: int = 3) -> State:
    rng = np.random.default_rng(seed)
    return {name: rng.normal(size=steps.start()[name].shape).astype(np.float32) for name in (WEIGHT, BIAS, MEAN)}


def trained() -> Trainer:
    trainer = Trainer(steps.whole_step(), kernel_options())
    trainer.step(**steps.batch())
    return trainer


def check_loaded(trainer: Trainer, before: State, loaded: State) -> None:
    """Everything but the weights has its value of before; steps continue from both."""
    expected = before | loaded
    state = trainer.state_dict()
    assert list(state) == list(expected)
    for name, array in expected.items():
        assert_same_bits(state[name], array)
    other = Trainer(steps.whole_step(), kernel_options())
    other.load_state_dict(expected)
    assert_same_bits(trainer.step(**steps.batch())["loss"], other.step(**steps.batch())["loss"])


def write_shards(folder: Path, weights: State) -> Path:
    """As `save_pretrained(max_shard_size=...)`: the bias in a file of its own."""
    files = {name: f"model-0000{1 + (name == BIAS)}-of-00002.safetensors" for name in weights}
    for file in set(files.values()):
        own = {name: array for name, array in weights.items() if files[name] == file}
        safetensors.numpy.save_file(own, folder / file, {"format": "pt"})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": files}))
    return index


@pytest.mark.parametrize("kind", ["file", "folder", "other name", "index", "folder of shards"])
def test_weights_are_loaded(tmp_path: Path, kind: str) -> None:
    weights, trainer = pretrained(), trained()
    path = tmp_path
    if kind in ("index", "folder of shards"):
        index = write_shards(tmp_path, weights)
        path = index if kind == "index" else tmp_path
    else:
        name = "diffusion_pytorch_model.safetensors" if kind == "other name" else "model.safetensors"
        safetensors.numpy.save_file(weights, tmp_path / name, {"format": "pt"})
        path = tmp_path / name if kind == "file" else tmp_path
    before = trainer.state_dict()
    assert trainer.load_weights(path) == ([], [])
    check_loaded(trainer, before, weights)


def test_tied_names(tmp_path: Path) -> None:
    """Any of them will do; several have the same values."""
    weights, trainer = pretrained(), trained()
    tied = {"head.weight": weights[WEIGHT], BIAS: weights[BIAS], MEAN: weights[MEAN]}
    safetensors.numpy.save_file(tied, tmp_path / "model.safetensors")
    before = trainer.state_dict()
    assert trainer.load_weights(tmp_path) == ([], [])
    check_loaded(trainer, before, weights)
    safetensors.numpy.save_file(tied | {WEIGHT: weights[WEIGHT] + 1}, tmp_path / "model.safetensors")
    with pytest.raises(StepError, match=r"'head.weight' differs from 'linear.weight', to which it is tied"):
        trainer.load_weights(tmp_path)


def test_missing_and_unexpected_names(tmp_path: Path) -> None:
    weights, trainer = pretrained(), trained()
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file({BIAS: weights[BIAS], "bert.pooler": np.zeros(2, np.float32)}, path)
    before = trainer.state_dict()
    with pytest.raises(StepError, match=r"missing: 'linear.weight', 'mean'; unexpected: 'bert.pooler'; strict=False"):
        trainer.load_weights(path)
    keys = trainer.load_weights(path, strict=False)
    assert keys.missing_keys == [WEIGHT, MEAN]
    assert keys.unexpected_keys == ["bert.pooler"]
    check_loaded(trainer, before, {BIAS: weights[BIAS]})
    safetensors.numpy.save_file({"bert.pooler": np.zeros(2, np.float32)}, path)
    for strict in (False, True):
        with pytest.raises(StepError, match=r"does not have the parameters .* unexpected: 'bert.pooler'$"):
            trainer.load_weights(path, strict=strict)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, np.float64])
def test_other_floating_dtypes_are_converted_on_request(tmp_path: Path, dtype: type) -> None:
    weights, trainer = pretrained(), trained()
    given = {name: array.astype(dtype) for name, array in weights.items()}
    write_weights(tmp_path / "model.safetensors", given)
    before = trainer.state_dict()
    with pytest.raises(StepError, match=r"'.*' is .*16|64.*, expected float32 .*; cast=True converts it"):
        trainer.load_weights(tmp_path)
    trainer.load_weights(tmp_path, cast=True)
    check_loaded(trainer, before, {name: array.astype(np.float32) for name, array in given.items()})


def write_weights(path: Path, weights: State) -> None:
    """By the library, which has no bfloat16 of NumPy."""
    names = {"float16": "F16", "bfloat16": "BF16", "float64": "F64"}
    entries = {
        name: {"dtype": names[array.dtype.name], "shape": list(array.shape), "data": array.tobytes()}
        for name, array in weights.items()
    }
    header, end = {}, 0
    for name, entry in entries.items():
        header[name] = {
            "dtype": entry["dtype"],
            "shape": entry["shape"],
            "data_offsets": [end, end := end + len(entry["data"])],
        }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(entry["data"] for entry in entries.values()))


def test_dtypes_and_shapes_that_are_refused(tmp_path: Path) -> None:
    weights, trainer = pretrained(), trained()
    before, path = trainer.state_dict(), tmp_path / "model.safetensors"
    for name, array, match in (
        (BIAS, np.zeros(2, np.int32), "'linear.bias' is int32 \\(2,\\), expected float32 \\(2,\\)$"),
        (MEAN, np.zeros(2, np.float32), "'mean' is float32 \\(2,\\), expected float32 \\(3,\\)"),
    ):
        safetensors.numpy.save_file(weights | {name: array}, path)
        with pytest.raises(StepError, match=match):
            trainer.load_weights(path, cast=True)
    for name, array in before.items():
        assert_same_bits(trainer.state_dict()[name], array)


def test_files_that_are_refused(tmp_path: Path) -> None:
    trainer = trained()
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(StepError, match=r"has pytorch_model.bin, expected model.safetensors, its index"):
        trainer.load_weights(tmp_path)
    for name in ("a.safetensors", "b.safetensors"):
        safetensors.numpy.save_file(pretrained(), tmp_path / name)
    with pytest.raises(StepError, match=r"has a.safetensors, b.safetensors, pytorch_model.bin, expected"):
        trainer.load_weights(tmp_path)
    index = tmp_path / "model.safetensors.index.json"
    for text, match in (
        ("[]", "is no index of safetensors files"),
        ('{"weight_map": {"mean": 1}}', "no object of strings"),
        (
            '{"weight_map": {"mean": "../a.safetensors"}}',
            "names the file '../a.safetensors', expected one in its folder",
        ),
        ('{"weight_map": {"other": "a.safetensors"}}', "a.safetensors lacks 'other', which it has according to"),
    ):
        index.write_text(text)
        with pytest.raises(StepError, match=match):
            trainer.load_weights(index)


def test_load_names_load_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    safetensors.numpy.save_file(pretrained(), path)
    with pytest.raises(
        StepError, match=r"neither optimizer state nor settings, such as .*: a file of weights is loaded by"
    ):
        trained().load(path)


@pytest.mark.parametrize("folder", [False, True])
def test_weights_are_saved(tmp_path: Path, folder: bool) -> None:
    """With the names and metadata of the library's readers, tied tensors once."""
    trainer, path = trained(), tmp_path / "model.safetensors"
    trainer.save_weights(tmp_path if folder else path)
    found = safetensors.numpy.load_file(path)
    assert set(found) == {WEIGHT, BIAS, MEAN}
    for name, array in found.items():
        assert_same_bits(array, trainer.state_dict()[name])
    with safetensors.safe_open(path, "np") as file:
        assert file.metadata()["format"] == "pt"
    other = Trainer(steps.whole_step(), kernel_options())
    before = other.state_dict()
    other.load_weights(tmp_path)
    check_loaded(other, before, found)


def test_weights_of_several_steps(tmp_path: Path) -> None:
    fixed = steps.whole_step()
    kept = [value for value in fixed.graph.output if value.name != NEXT + MEAN]
    del fixed.graph.output[:]
    fixed.graph.output.extend(kept)
    trainer = Trainer({"one": steps.whole_step(), "two": fixed}, kernel_options())
    safetensors.numpy.save_file(pretrained(), tmp_path / "model.safetensors")
    before = trainer.state_dict()
    trainer.load_weights(tmp_path)
    state = trainer.state_dict()
    for name, array in (before | pretrained()).items():
        assert_same_bits(state[name], array)
