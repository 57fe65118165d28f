"""Models whose weights are in other files: where these are looked for and copied to, and what is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from command_line import DEEP, EXPECTED, FAILED, G, X, answer, error, names, run, save_external
from onnx import TensorProto, numpy_helper, parser

from onnx_ops.graph.files import external_files, read_model


def test_external_data_is_copied_beside_a_model_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "in" / "data").mkdir(parents=True)
    (tmp_path / "out").mkdir()
    source, out = save_external(tmp_path / "in" / "m.onnx", "data/weights.bin"), tmp_path / "out" / "m.onnx"
    assert "Copied external data: data/weights.bin." in run("link", source, out).stdout
    assert names(tmp_path / "out") == {"m.onnx", "data/weights.bin"}
    np.testing.assert_array_equal(ort.InferenceSession(out).run(None, {"g": G})[0], EXPECTED)
    assert answer("link", source, out)["copied"] == []  # it is there


def test_external_data_of_a_model_in_the_same_folder_stays(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    for out in (tmp_path / "out.onnx", source):
        assert answer("link", source, out)["copied"] == []
        np.testing.assert_array_equal(ort.InferenceSession(out).run(None, {"g": G})[0], EXPECTED)
    assert names(tmp_path) == {"m.onnx", "out.onnx", "weights.bin"}


def test_other_weights_of_that_name_are_not_overwritten(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "weights.bin").write_text("of another model")
    assert "exists already, with different contents" in error("link", source, tmp_path / "out" / "m.onnx")
    assert names(tmp_path / "out") == {"weights.bin"}


def test_model_is_not_written_over_its_own_weights(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    assert "keeps external data in a file of that name" in error("link", source, tmp_path / "weights.bin")
    np.testing.assert_array_equal(numpy_helper.to_array(onnx.load_model(source).graph.initializer[0]), X)


def _entry(key: str, value: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        model = onnx.load_model(path, load_external_data=False)
        (entry,) = (e for e in model.graph.initializer[0].external_data if e.key == key)
        entry.value = value
        path.write_bytes(model.SerializeToString())

    return change


SPOILT: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (lambda path: (path.parent / "weights.bin").unlink(), "weights.bin, which does not exist"),
    "too-short": (lambda path: os.truncate(path.parent / "weights.bin", 23), "up to byte 24, which ends at 23"),
    "offset": (_entry("offset", "8"), "up to byte 32"),
    "no-number": (_entry("length", "many"), "an invalid extent of external data"),
    "before-the-file": (_entry("offset", "-8"), "an invalid extent of external data: offset -8"),
    "no-length": (_entry("length", "-1"), "an invalid extent of external data: offset 0, length -1"),
    "outside": (_entry("location", "../weights.bin"), "expected a file below the model's folder"),
    "absolute": (_entry("location", str(Path("/weights.bin"))), "expected a file below the model's folder"),
    "long": (_entry("location", "x" * 300), "which does not exist"),
    "nowhere": (_entry("location", ""), "expected a file below the model's folder"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_weights_that_are_not_found(name: str, tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    spoil, message = SPOILT[name]
    spoil(source)
    there = names(tmp_path)
    assert message in error("link", source, tmp_path / "out.onnx")
    assert names(tmp_path) == there
    checked = answer("check", source, code=FAILED)
    assert [message in problem for problem in checked["problems"]] == [True]


def test_external_data_of_attributes_subgraphs_and_sparse_tensors_is_found(tmp_path: Path) -> None:
    model = parser.parse_model(DEEP)

    def external(name: str) -> TensorProto:
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, data_location=TensorProto.EXTERNAL)
        tensor.external_data.add(key="location", value=name)
        return tensor

    model.graph.sparse_initializer.add(values=external("values"), indices=external("indices"))
    branch = model.graph.node[-1].attribute[0].g
    branch.initializer.append(external("branch"))
    branch.node.append(onnx.helper.make_node("Constant", [], ["k"], value=external("attribute")))
    model.functions[0].node.append(onnx.helper.make_node("Constant", [], ["k"], value=external("function")))
    expected = {"values", "indices", "branch", "attribute", "function"}
    for name in expected:
        (tmp_path / name).touch()
    assert set(external_files(model, tmp_path / "m.onnx")) == expected


def test_links_out_of_the_models_folder_are_refused(tmp_path: Path) -> None:
    """As by onnxruntime, which would read what the writer of a model has no right to."""
    (tmp_path / "model").mkdir()
    source = save_external(tmp_path / "model" / "m.onnx")
    (tmp_path / "elsewhere").mkdir()
    data = next(file for file in source.parent.iterdir() if file != source)
    data.symlink_to(data.rename(tmp_path / "elsewhere" / data.name))
    refusal = error("link", source, tmp_path / "model" / "out.onnx")
    assert f"a link to {(tmp_path / 'elsewhere' / data.name).resolve()}, expected a file below" in refusal
    assert answer("check", source, code=FAILED)["problems"] == [refusal]


def test_link_to_itself(tmp_path: Path) -> None:
    source = save_external(tmp_path / "m.onnx")
    data = next(file for file in tmp_path.iterdir() if file != source)
    data.unlink()
    data.symlink_to(data.name)
    (problem,) = answer("check", source, code=FAILED)["problems"]
    assert problem.endswith("which does not exist")


def test_links_within_the_models_folder_are_followed(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    source = save_external(tmp_path / "model" / "m.onnx")
    data = next(file for file in source.parent.iterdir() if file != source)
    (source.parent / "data").mkdir()
    data.symlink_to(data.rename(source.parent / "data" / data.name))
    assert answer("check", source)["ok"]


def test_reading_keeps_external_data_outside(tmp_path: Path) -> None:
    assert not read_model(save_external(tmp_path / "m.onnx")).graph.initializer[0].raw_data
