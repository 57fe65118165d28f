"""Step files whose tensors are read and written one by one, directly from or into the state."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import steps
from backends import assert_close, assert_same_bits, options
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from onnx_ops import InferenceSession, InputRole, Step, Trainer
from onnx_ops.cli.app import app
from onnx_ops.core.errors import Error
from onnx_ops.core.step_format import WEIGHTS_METADATA
from onnx_ops.graph import light, reading
from onnx_ops.graph.files import ExternalData, ModelFileError
from onnx_ops.graph.stored import StoredTensor
from onnx_ops.training import inference, weights
from onnx_ops.training.errors import StepError
from onnx_ops.training.inference import inference_model
from onnx_ops.training.safetensors_format import DTYPES, open_safetensors, write_safetensors
from onnx_ops.training.step_files import open_step, save_step

ROOT = Path(__file__).parents[2]
Measured = Callable[[str, Path], list[float]]
SETS = 1
"""Sets of tensors of the state that a trainer has."""


@pytest.fixture(autouse=True)
def all_files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(light, "SMALL_FILE", 0)
    monkeypatch.setattr(light, "LARGE_TENSOR", 1)


def same_bytes(one: onnx.ModelProto, other: onnx.ModelProto) -> bool:
    return one.SerializeToString(deterministic=True) == other.SerializeToString(deterministic=True)


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("window", [12, 2**16])
def test_light_model_is_the_model_without_contents(
    window: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(light, "WINDOW", window)
    model, path = steps.whole_step(), tmp_path / "step.onnx"
    onnx.save(model, path)
    found, file = light.read_light(path)
    assert not any(tensor.raw_data for tensor in found.graph.initializer)
    ExternalData(path, file).embed_all(found)
    assert same_bytes(found, model)


@pytest.mark.parametrize("encoding", ["raw", "typed", "external"])
def test_start_values_in_every_encoding(encoding: str, tmp_path: Path) -> None:
    model, path = steps.whole_step(), tmp_path / "step.onnx"
    if encoding == "typed":
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor)
            tensor.CopyFrom(helper.make_tensor(tensor.name, tensor.data_type, tensor.dims, array.reshape(-1)))
    elsewhere = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save_model(model, path, **elsewhere if encoding == "external" else {})
    _, start = open_step(path)
    for name, array in steps.start().items():
        assert isinstance(start[name], StoredTensor) == (encoding != "typed")
        assert_same_bits(np.asarray(start[name]), array)


def test_a_file_that_is_replaced_is_read_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(steps.whole_step(), path)
    _, start = open_step(path)
    (tmp_path / "other").write_bytes(b"")
    (tmp_path / "other").replace(path)
    assert_same_bits(np.asarray(start["linear.weight"]), steps.start()["linear.weight"])


def test_a_file_that_is_shortened_meanwhile_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "step.onnx"
    onnx.save(steps.whole_step(), path)
    _, start = open_step(path)
    with path.open("r+b") as file:
        file.truncate(10)
    with pytest.raises(OSError, match=f"the file was shortened while it was read: '{path}'"):
        np.asarray(start["linear.weight"])


def outcome(step: Path | bytes) -> str:
    """What becomes of opening a step: its start values, or an error without the name of the file."""
    try:
        _, start = open_step(step)
    except Error as error:
        return f"{type(error).__name__} {error}".replace(str(step) if isinstance(step, Path) else "this", "it")
    return str({name: np.asarray(source).tobytes() for name, source in start.items()})


def test_damaged_files_are_refused_as_when_they_are_read_whole(tmp_path: Path) -> None:
    content, rng, found = steps.whole_step().SerializeToString(), random.Random(0), set()
    path = tmp_path / "step.onnx"
    for trial in range(300):
        damaged = bytearray(content)
        if trial % 3:
            damaged[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(content)) :]
        path.write_bytes(damaged)
        expected = outcome(bytes(damaged))
        if "external" not in expected and "its data in" not in expected:  # which only a path has
            assert outcome(path) == expected, f"trial {trial}"
        found.add(expected.split()[0])
    assert {"LinkError", "StepError"} <= found


def test_initializers_of_an_unusual_encoding_are_read_whole(tmp_path: Path) -> None:
    """Fields that are given twice, of which the last one counts; a graph in two parts; a group."""
    model, path = steps.whole_step(inference=False), tmp_path / "step.onnx"
    content = model.SerializeToString()
    twice = TensorProto(name="linear.bias", data_type=TensorProto.FLOAT, dims=[2], raw_data=bytes(8))
    again = light.delimited(light.RAW_DATA, np.float32([1, 2]).tobytes())
    del model.graph.initializer[1]
    more = light.delimited(light.INITIALIZER, twice.SerializeToString() + again)
    path.write_bytes(model.SerializeToString() + light.delimited(light.GRAPH, more))
    assert np.asarray(open_step(path)[1]["linear.bias"]).tolist() == [1, 2]
    path.write_bytes(content + light.varint(99 << 3 | 3) + light.varint(99 << 3 | 4))
    assert np.asarray(open_step(path)[1]["seed"]) == 7
    assert same_bytes(light.read_light(path)[0], reading.read(path))


def test_steps_from_a_file_and_from_its_bytes(tmp_path: Path) -> None:
    model, path = steps.whole_step(), tmp_path / "step.onnx"
    onnx.save(model, path)
    one, other = Trainer(path), Trainer(model.SerializeToString())
    assert_same_bits(one.step(**steps.batch())["loss"], other.step(**steps.batch())["loss"])
    for name, array in one.state_dict().items():
        assert_same_bits(array, other.state_dict()[name])


# --- memory -----------------------------------------------------------------------------------------------------------

MEASURING = """
    import contextlib
    import gc
    import io
    import json
    import os
    import sys
    import traceback
    from pathlib import Path

    import numpy as np
    import onnx
    from onnx import TensorProto, helper

    from onnx_ops import InputRole, Step, Trainer, step_model
    from scripts.memory.peaks import peak, reset_peak, resident

    COUNT = 4

    def reset():
        reset_peak()
        return resident()

    def halving(shape):
        names = [f"w{i}" for i in range(COUNT)]
        typed = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        nodes = [helper.make_node("Mul", [name, "half"], ["next." + name]) for name in names]
        nodes.append(helper.make_node("ReduceSum", ["x"], ["loss"], keepdims=0))
        inputs = [*(typed(name, shape) for name in names), typed("x", [2])]
        outputs = [typed("loss", []), *(typed("next." + name, shape) for name in names)]
        half = helper.make_tensor("half", TensorProto.FLOAT, [], [0.5])
        graph = helper.make_graph(nodes, "halving", inputs, outputs, [half])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        Step(dict.fromkeys(names, InputRole.PARAMETER)).write_into(model)
        state = {name: np.full(shape, number, np.float32) for number, name in enumerate(names, 1)}
        return model, state

    def trained(trainer):
        trainer.step(x=np.ones(2, np.float32))

    def scaling(shape):  # an inference graph: x times the sum of what the parameters have in their first rows
        names = [f"w{i}" for i in range(COUNT)]
        typed = lambda name, dims: helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)
        nodes = [helper.make_node("Gather", [name, "zero"], ["row " + name]) for name in names]
        nodes += [helper.make_node("ReduceMax", ["row " + name], ["max " + name], keepdims=0) for name in names]
        nodes.append(helper.make_node("Sum", ["max " + name for name in names], ["sum"]))
        nodes.append(helper.make_node("Mul", ["x", "sum"], ["y"]))
        zero = helper.make_tensor("zero", TensorProto.INT64, [], [0])
        inputs = [*(typed(name, shape) for name in names), typed("x", [2])]
        graph = helper.make_graph(nodes, "scaling", inputs, [typed("y", [2])], [zero])
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    trained(Trainer(step_model(*halving([2]))))  # loads kernels and libraries
    gc.collect()  # its sessions, whose threads a fork would wait for in vain
    SHAPE = [12, 1024, 1024]  # 48 MiB
    SIZE = COUNT * 48 * 2**20

    def answer(program, folder):
        printed = io.StringIO()
        try:
            with contextlib.redirect_stdout(printed):
                exec(program, globals() | {"folder": Path(folder)})
        except Exception:
            return None, traceback.format_exc()
        return [float(number) for number in printed.getvalue().split()], None

    for line in sys.stdin:
        if os.fork() == 0:
            print(json.dumps(answer(*json.loads(line))), flush=True)
            os._exit(0)
        if status := os.wait()[1]:
            print(json.dumps([None, f"the process ended with status {status}"]), flush=True)
"""


@pytest.fixture(scope="module")
def measured() -> Iterator[Measured]:
    """Runs a program in a process of its own, a fork of one that has loaded kernels; returns the numbers it prints."""
    command = [sys.executable, "-c", textwrap.dedent(MEASURING)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:

        def run(program: str, folder: Path) -> list[float]:
            assert parent.stdin
            assert parent.stdout
            print(json.dumps([textwrap.dedent(program), str(folder)]), file=parent.stdin, flush=True)
            numbers, problem = json.loads(parent.stdout.readline())
            assert problem is None, problem
            return list(numbers)

        yield run


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")


@needs_proc
def test_memory_of_loading(measured: Measured, tmp_path: Path) -> None:
    """One copy of the state for each set of tensors that the trainer has, and nothing else of that size."""
    written = """
        model, state = halving(SHAPE)
        onnx.save(step_model(model, state), folder / "step.onnx")
    """
    loaded = """
        before = reset()
        trainer = Trainer(folder / "step.onnx")
        print((peak() - before) / SIZE)
        assert [float(array.max()) for array in trainer.state_dict().values()] == [1, 2, 3, 4]
    """
    measured(written, tmp_path)
    (ratio,) = measured(loaded, tmp_path)
    assert ratio < SETS + 0.2


@needs_proc
def test_memory_of_checking(measured: Measured, tmp_path: Path) -> None:
    program = """
        from typer.testing import CliRunner

        from onnx_ops.cli.app import app

        model, state = halving(SHAPE)
        onnx.save(step_model(*halving([2])), folder / "small.onnx")
        onnx.save(step_model(model, state), folder / "step.onnx")
        for name in ("small.onnx", "step.onnx"):
            before = reset()
            assert CliRunner().invoke(app, ["check", str(folder / name)]).exit_code == 0
            print((peak() - before) / SIZE)
    """
    _, ratio = measured(program, tmp_path)
    assert ratio < 0.1


@needs_proc
def test_memory_that_a_trainer_keeps(measured: Measured, tmp_path: Path) -> None:
    """Of a model in memory, and of its bytes."""
    program = """
        import gc

        model, state = halving(SHAPE)
        whole = step_model(model, state)
        del state
        for step in (whole, whole.SerializeToString()):
            gc.collect()
            before = reset()
            trainer = Trainer(step)
            gc.collect()
            print((resident() - before) / SIZE)
            del trainer
    """
    for kept in measured(program, tmp_path):
        assert kept < SETS + 0.2


@needs_proc
def test_memory_of_checkpoints(measured: Measured, tmp_path: Path) -> None:
    """Neither writing nor reading one needs memory for it: a block is read at a time, and tensors go where they are."""
    program = """
        trainer = Trainer(step_model(*halving(SHAPE)))
        trained(trainer)
        before = reset()
        trainer.save(folder / "checkpoint.safetensors")
        print((peak() - before) / SIZE)
        trained(trainer)
        before = reset()
        trainer.load(folder / "checkpoint.safetensors")
        print((peak() - before) / SIZE)
        assert [float(array.max()) for array in trainer.state_dict().values()] == [0.5, 1, 1.5, 2]
    """
    writing, reading = measured(program, tmp_path)
    assert writing < 0.05
    assert reading < 0.05


def test_checkpoints_are_written_as_by_safetensors(tmp_path: Path) -> None:
    """The same bytes, except that its library writes metadata in random order."""
    numpy = pytest.importorskip("safetensors.numpy")
    rng = np.random.default_rng(0)
    names = ["b", "a", "é", "Z", "10", "9"]
    for text in ("", "x" * 7, "\u00fc\n\x1f\u2028"):
        arrays = {
            f"{name}{dtype}": rng.integers(0, 2, (2, number)).astype(dtype)
            for number, name in enumerate(names)
            for dtype in DTYPES.values()
            if dtype.isbuiltin == 1
        }
        write_safetensors(tmp_path / "file", arrays | {"scalar": np.array(3.5)}, {"text": text})
        assert (tmp_path / "file").read_bytes() == numpy.save(arrays | {"scalar": np.array(3.5)}, {"text": text})


def header(**entries: object) -> dict[str, object]:
    return {"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}} | entries


TENSOR = {"dtype": "I32", "shape": [], "data_offsets": [8, 12]}


@pytest.mark.parametrize(
    ("damaged", "problem"),
    [
        (header(b=TENSOR), None),
        (header(__metadata__=None, b=TENSOR), None),
        (header(), "its tensors end at byte"),
        (header(b=TENSOR | {"data_offsets": [4, 8]}), "its tensors do not follow one another"),
        (header(b=TENSOR | {"data_offsets": [12, 16]}), "its tensors do not follow one another"),
        (header(b=TENSOR | {"shape": [2]}), "'b' has 4 bytes"),
        (header(b=TENSOR | {"shape": [-1, -1]}), "'b' is .*, expected dtype, shape and data_offsets"),
        (header(b=TENSOR | {"shape": None}), "'b' is .*, expected dtype"),
        (header(b=TENSOR | {"data_offsets": [8]}), "'b' is .*, expected dtype"),
        (header(b=TENSOR | {"dtype": 7}), "'b' is .*, expected dtype"),
        (header(b=[]), "'b' is .*, expected dtype"),
        (header(b=TENSOR, __metadata__={"epoch": 3}), "its '__metadata__' is no object of strings"),
        ([], "its header is no object"),
        ("[" * 100_000, "its header is no JSON"),
        ("\udcff", "its header is no JSON"),
        (None, "its header would have 255"),
        (b"", "it is too short for a header"),
    ],
)
def test_damaged_headers(damaged: object, problem: str | None, tmp_path: Path) -> None:
    path = tmp_path / "file.safetensors"
    if isinstance(damaged, bytes):
        path.write_bytes(damaged)
    else:
        text = damaged if isinstance(damaged, str) else json.dumps(damaged)
        content = text.encode(errors="surrogateescape")
        length = 255 if damaged is None else len(content)
        path.write_bytes(length.to_bytes(8, "little") + content + bytes(12))
    if problem is None:
        assert list(open_safetensors(path)[0]) == ["a", "b"]
    else:
        with pytest.raises(StepError, match=f"{path} is no safetensors file: {problem}"):
            open_safetensors(path)
    library = pytest.importorskip("safetensors.numpy")
    if problem is None:
        library.load_file(path)
    else:
        with pytest.raises(Exception, match=r"deserializ|header|numpy"):
            library.load_file(path)


# --- writing ----------------------------------------------------------------------------------------------------------


def saved(folder: Path, *, external: bool = True, inference: bool = True, **changes: np.ndarray) -> Path:
    """A step file, and its weights file if they are external."""
    folder.mkdir(exist_ok=True)
    given = steps.inference_graph() if inference else None
    save_step(steps.bare_step(), steps.start() | changes, given, folder / "step.onnx", external=external)
    return folder / "step.onnx"


def test_step_file_has_the_bytes_of_its_model(tmp_path: Path) -> None:
    """One whose initializers are among others, and one whose state has no elements."""
    path = saved(tmp_path, external=False)
    assert path.read_bytes() == steps.whole_step().SerializeToString()
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask()


def umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize("suffix", ["onnxtxt", "json", "textproto"])
def test_step_file_in_another_format(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"step.{suffix}"
    save_step(steps.bare_step(), steps.start(), steps.inference_graph(), path, external=False)
    # onnx 1.19 writes six digits into ONNX's text syntax.
    assert_close(Trainer(path).state_dict()["linear.weight"], steps.start()["linear.weight"], rtol=1e-5)


def test_step_with_its_state_in_a_second_file(tmp_path: Path) -> None:
    """Read by this package, by safetensors, by plain onnx, and as a checkpoint."""
    path = saved(tmp_path)
    weights = tmp_path / "step.safetensors"
    assert sorted(tmp_path.iterdir()) == [path, weights]
    trainer, other = Trainer(path), Trainer(steps.whole_step())
    for number in range(2):
        assert_same_bits(
            trainer.step(**steps.batch(seed=number))["loss"], other.step(**steps.batch(seed=number))["loss"]
        )
    assert trainer.load(weights) == {"format": "pt"}
    read = pytest.importorskip("safetensors.numpy").load_file(weights)
    whole = {tensor.name: numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    for name, array in steps.start().items():
        for found in (trainer.state_dict(), read, whole):
            assert_same_bits(found[name], array)
    session = ort.InferenceSession(path, options(), providers=["CPUExecutionProvider"])
    (loss,) = session.run(["loss"], steps.batch())
    assert_close(loss, Trainer(steps.whole_step()).step(**steps.batch())["loss"], rtol=1e-6)


def test_state_without_elements(tmp_path: Path) -> None:
    vector = helper.make_tensor_value_info("w", TensorProto.FLOAT, [0])
    loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
    nodes = [helper.make_node("ReduceSum", ["w"], ["loss"], keepdims=0)]
    graph = helper.make_graph(nodes, "empty", [vector], [loss])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    Step({"w": InputRole.PARAMETER}).write_into(model)
    for external in (False, True):
        save_step(model, {"w": np.empty(0, np.float32)}, None, tmp_path / "step.onnx", external=external)
        assert Trainer(tmp_path / "step.onnx").step()["loss"] == 0


def missing(path: Path) -> None:
    path.unlink()


def truncated(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)


def longer(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"z")


def no_safetensors(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def of_another_capture(path: Path) -> None:
    other = saved(path.parent / "other", mean=np.ones(3, np.float32))
    other.with_suffix(".safetensors").replace(path)


def of_other_shapes(path: Path) -> None:
    """With the right checksum in its metadata."""
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"shape":[3,2]', b'"shape":[2,3]'))


def without_metadata(path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    numpy.save_file(numpy.load_file(path), path)


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (missing, "tensor '.*' has its data in {}, which does not exist"),
        (a_folder, "tensor '.*' has its data in {}, which does not exist"),
        (truncated, "tensor '.*' has its data in {} up to byte .*, which ends at|{} is no safetensors file"),
        (longer, "{} is no safetensors file: its tensors end at byte"),
        (no_safetensors, "{} is no safetensors file"),
        (of_another_capture, "{} does not belong to .*step.onnx, expected the weights that were saved with it"),
        (of_other_shapes, "{} does not belong to .*step.onnx"),
        (without_metadata, "{} does not belong to .*step.onnx|has its data in {} up to byte"),
    ],
)
def test_weights_that_are_not_those_of_the_step(damage: Callable[[Path], None], problem: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    weights = path.with_suffix(".safetensors")
    damage(weights)
    with pytest.raises((StepError, ModelFileError), match=problem.replace("{}", re.escape(str(weights)))):
        Trainer(path)


@pytest.mark.parametrize("record", ["", "[]", "{}", '{"file": 3}', "[" * 100_000])
def test_damaged_record_of_the_weights(record: str, tmp_path: Path) -> None:
    path = saved(tmp_path)
    model = onnx.load(path, load_external_data=False)
    (entry,) = (entry for entry in model.metadata_props if entry.key == WEIGHTS_METADATA)
    entry.value = record
    onnx.save(model, path)
    with pytest.raises(StepError, match=r"the entry 'onnx_ops\.weights' of the model's metadata cannot be read"):
        Trainer(path)


def test_step_that_another_program_has_rewritten(tmp_path: Path) -> None:
    """As one file, or with external data of its own; the record of the weights does not count then."""
    path = saved(tmp_path)
    for elsewhere in ({}, {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}):
        onnx.save_model(onnx.load(path), tmp_path / "other.onnx", **elsewhere)
        assert_same_bits(Trainer(tmp_path / "other.onnx").state_dict()["linear.weight"], steps.start()["linear.weight"])


def test_step_is_saved_again(tmp_path: Path) -> None:
    """Also a model that names weights already, of which the new ones count."""
    path = saved(tmp_path)
    model = onnx.load(path)
    save_step(model, steps.start() | {"mean": np.ones(3, np.float32)}, None, path, external=True)
    assert Trainer(path).state_dict()["mean"].tolist() == [1, 1, 1]
    assert sorted(tmp_path.iterdir()) == [path, tmp_path / "step.safetensors"]


def test_what_exists_is_replaced_only_if_it_is_a_file(tmp_path: Path) -> None:
    for name in ("step.onnx", "step.safetensors"):
        folder = tmp_path / name
        (folder / name).mkdir(parents=True)
        with pytest.raises(ModelFileError, match=f"cannot write {folder / name}: it is not a regular file"):
            saved(folder)
        assert list(folder.iterdir()) == [folder / name]
    with pytest.raises(FileNotFoundError) as raised:
        save_step(steps.bare_step(), steps.start(), None, tmp_path / "nowhere" / "step.onnx", external=True)
    assert raised.value.filename == str(tmp_path / "nowhere" / "step.onnx")


def test_only_a_second_file_can_have_the_name_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "step.safetensors"
    save_step(steps.bare_step(), steps.start(), None, path, external=False)
    assert_same_bits(Trainer(path).state_dict()["linear.weight"], steps.start()["linear.weight"])
    with pytest.raises(ModelFileError, match="the model keeps external data in a file of that name"):
        save_step(steps.bare_step(), steps.start(), None, path, external=True)


def test_limit_of_a_single_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(steps.whole_step().SerializeToString())
    for most in (size, size - 1):
        monkeypatch.setattr(weights, "MOST_BYTES", most)
        path = saved(tmp_path / str(most), external=False)
        assert path.with_suffix(".safetensors").exists() == (most < size)
        assert_same_bits(Trainer(path).state_dict()["linear.weight"], steps.start()["linear.weight"])
    monkeypatch.setattr(weights, "MOST_BYTES", 1000)
    with pytest.raises(ModelFileError, match="its constants alone exceed 2 GiB, which is protobuf's limit"):
        saved(tmp_path)


def test_commands_on_a_step_with_two_files(tmp_path: Path) -> None:
    """`check` and `link` read the graph; a copy in another folder gets the weights too."""
    path = saved(tmp_path / "one")
    (tmp_path / "two").mkdir()
    for arguments in (["check", path, "--linked"], ["link", path, tmp_path / "two" / "step.onnx"]):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
    assert_same_bits(Trainer(tmp_path / "two" / "step.onnx").state_dict()["mean"], steps.start()["mean"])
    of_another_capture(path.with_suffix(".safetensors"))
    for arguments in (["check", path], ["link", path, tmp_path / "step.onnx"]):
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        assert result.exit_code == 1
        assert "does not belong to" in " ".join(result.output.split())


@needs_proc
@pytest.mark.parametrize("external", [False, True])
def test_memory_of_saving(external: bool, measured: Measured, tmp_path: Path) -> None:
    program = f"""
        from onnx_ops.training.step_files import save_step

        model, state = halving(SHAPE)
        before = reset()
        save_step(model, state, None, folder / "step.onnx", external={external})
        print((peak() - before) / SIZE)
        before = reset()
        trainer = Trainer(folder / "step.onnx")
        print((peak() - before) / SIZE)
        assert [float(array.max()) for array in trainer.state_dict().values()] == [1, 2, 3, 4]
    """
    saving, loading = measured(program, tmp_path)
    assert saving < 0.05
    assert loading < SETS + 0.2


# --- the trained model ------------------------------------------------------------------------------------------------


def predictions(path: Path) -> np.ndarray:
    """In a session of plain onnxruntime."""
    session = ort.InferenceSession(path, options(), providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": steps.batch()["x"]})
    return found


def test_exported_model_has_the_bytes_of_its_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, trainer = tmp_path / "trained.onnx", Trainer(steps.whole_step())
    expected = inference_model(steps.whole_step(), trainer.state_dict())
    for large in (0, 1024):
        monkeypatch.setattr(inference, "LARGE", large)
        trainer.export(path)
        assert path.read_bytes() == expected.SerializeToString()
    assert list(tmp_path.iterdir()) == [path]


def test_exported_model_with_external_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(steps.whole_step())
    trainer.export(tmp_path / "whole.onnx")
    monkeypatch.setattr(inference, "LARGE", 0)
    monkeypatch.setattr(weights, "MOST_BYTES", (tmp_path / "whole.onnx").stat().st_size - 1)
    path = tmp_path / "trained.onnx"
    trainer.export(path)
    assert (tmp_path / "trained.onnx.data").exists()
    onnx.checker.check_model(path, full_check=True)
    assert_same_bits(predictions(path), predictions(tmp_path / "whole.onnx"))
    found = InferenceSession(path).run(None, {"x": steps.batch()["x"]})[0]
    assert_close(found, predictions(path), rtol=1e-6)


@needs_proc
def test_memory_of_exporting(measured: Measured, tmp_path: Path) -> None:
    program = """
        trainer = Trainer(step_model(*halving(SHAPE), scaling(SHAPE)))
        before = reset()
        trainer.export(folder / "trained.onnx")
        print((peak() - before) / SIZE)
    """
    (exporting,) = measured(program, tmp_path)
    assert exporting < 0.05
    session = ort.InferenceSession(tmp_path / "trained.onnx", options(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [10, 10]


@needs_proc
def test_memory_of_captures(measured: Measured, tmp_path: Path) -> None:
    """The inference graph has the parameters as initializers, which are not copied."""
    program = """
        from types import SimpleNamespace

        from onnx_ops.training.step_files import save_step

        model, state = halving(SHAPE)
        inference = scaling(SHAPE)
        for name, array in state.items():
            inference.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
        before = reset()
        save_step(model, state, inference, folder / "step.onnx", external=False)
        print((peak() - before) / SIZE)
        before = reset()
        trainer = Trainer(SimpleNamespace(model=model, state=state, inference=inference, evaluation=None))
        print((peak() - before) / SIZE)
    """
    saving, loading = measured(program, tmp_path)
    assert saving < 0.05
    assert loading < SETS + 0.2


# --- above 2 GiB ------------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_state_above_2_gib(measured: Measured, tmp_path: Path) -> None:
    """Saved, loaded, trained, as a checkpoint and as an exported model, in its size and a little more."""
    program = """
        from onnx_ops.training.step_files import save_step

        SHAPE = [150, 1024, 1024]
        SIZE = COUNT * 600 * 2**20
        model, state = halving(SHAPE)
        before = reset()
        save_step(model, state, scaling(SHAPE), folder / "step.onnx", external=False)
        print((peak() - before) / SIZE)
        del state
        before = reset()
        trainer = Trainer(folder / "step.onnx")
        print((peak() - before) / SIZE)
        trained(trainer)
        before = reset()
        trainer.save(folder / "checkpoint.safetensors")
        print((peak() - before) / SIZE)
        trained(trainer)
        before = reset()
        trainer.load(folder / "checkpoint.safetensors")
        print((peak() - before) / SIZE)
        before = reset()
        trainer.export(folder / "trained.onnx")
        print((peak() - before) / SIZE)
        assert [float(array[0].max()) for array in trainer._arrays.values()] == [0.5, 1, 1.5, 2]
    """
    saving, loading, writing, reading, exporting = measured(program, tmp_path)
    assert max(saving, writing, reading, exporting) < 0.05
    assert loading < SETS + 0.05
    assert (tmp_path / "step.onnx").stat().st_size < 2**20
    session = ort.InferenceSession(tmp_path / "trained.onnx", options(), providers=["CPUExecutionProvider"])
    assert session.run(None, {"x": np.ones(2, np.float32)})[0].tolist() == [5, 5]
