"""Packages of onnxruntime in a Node process: how to run models in it, and the backends that run one op in it."""

from __future__ import annotations

import base64
import collections
import contextlib
import functools
import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import backends
import numpy as np
import onnx
import pytest
from backends import BFLOAT16, Array, Backend, Call
from onnx import TensorProto, helper

import onnx_ops

PROGRAM = Path(__file__).parents[2] / "scripts" / "web" / "run_models.mjs"
WEB_PACKAGE, NATIVE_PACKAGE = "onnxruntime-web", "onnxruntime-node"
TARGETS = {WEB_PACKAGE: "web-packages", NATIVE_PACKAGE: "native-package"}
"""The packages that run models in Node, and what installs them."""
in_both_packages = pytest.mark.parametrize("node", TARGETS, indirect=True)
SECONDS = 60
"""Longer than any request takes on a busy machine; a process that does not answer is killed."""
SESSIONS = 200
"""Kept at a time: they share the memory of one WebAssembly module."""


def what_is_missing(runtime: str) -> str | None:
    """Why models cannot be run in a package of onnxruntime, if they cannot."""
    if shutil.which("node") is None:
        return "node is not installed"
    if not (PROGRAM.parent / "node_modules" / runtime).is_dir():
        return f"{runtime} is not installed: run `make {TARGETS[runtime]}`"
    return None


class WebError(Exception):
    """What onnxruntime-web answered instead of results."""


class Node:
    """A Node process that runs models, in a package of onnxruntime, until it is closed."""

    def __init__(self, runtime: str = WEB_PACKAGE) -> None:
        self.runtime = runtime
        command = ["node", str(PROGRAM), runtime]
        self.process = subprocess.Popen(
            command, cwd=PROGRAM.parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.sessions: collections.OrderedDict[Hashable, Session] = collections.OrderedDict()

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and wait for its answer.

        Raises:
            WebError: the request failed; the process is fine.
            RuntimeError: the process ended, or was ended because it did not answer.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(SECONDS, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if not line:
            raise RuntimeError(f"the Node process ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise WebError(answer["error"])
        return answer

    def session(self, key: Hashable, make: Callable[[], onnx.ModelProto], options: Mapping[str, Any]) -> Session:
        """The session of a key, made when it is first needed and released when many others were needed since."""
        if key not in self.sessions:
            self.sessions[key] = Session(self, make(), **options)
            if len(self.sessions) > SESSIONS:
                self.sessions.popitem(last=False)[1].release()
        self.sessions.move_to_end(key)
        return self.sessions[key]

    def close(self) -> int:
        """End the process; its exit code."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        try:
            return self.process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
        finally:
            self.process.stdout.close()


class Session:
    """A model in a Node process."""

    def __init__(self, node: Node, model: onnx.ModelProto | bytes, **options: Any) -> None:
        self.node = node
        data = model if isinstance(model, bytes) else model.SerializeToString()
        loaded = node.ask(load=_base64(data), options=options)
        self.number, self.outputs = loaded["session"], loaded["outputs"]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """All outputs by name."""
        answer = self.node.ask(run=self.number, feeds={name: _encoded(array) for name, array in feeds.items()})
        return {name: _decoded(answer["results"][name]) for name in self.outputs}

    def release(self) -> None:
        """Give its memory back."""
        self.node.ask(release=self.number)


class Trainer:
    """A training step in a Node process, with the trainer in JavaScript."""

    def __init__(
        self, node: Node, step: onnx.ModelProto | bytes, weights: bytes | None = None, *, blob: bool = False
    ) -> None:
        self.node = node
        second = {} if weights is None else {"weights": _base64(weights), "blob": blob}
        loaded = node.ask(train=_base64(step if isinstance(step, bytes) else step.SerializeToString()), **second)
        self.number = loaded["trainer"]
        self.batch_inputs: dict[str, dict[str, Any]] = loaded["inputs"]

    def step(self, **batch: Array) -> dict[str, Array]:
        """What a step reports."""
        return self._ask("step", batch)

    def infer(self, **inputs: Array) -> dict[str, Array]:
        """The outputs of the trained network."""
        return self._ask("infer", inputs)

    def state(self) -> dict[str, Array]:
        """The whole state."""
        return self._ask("state", {})

    def evaluate(self, mode: str = "eval", /, **batch: Array) -> dict[str, Array]:
        """What a step would report."""
        return self._ask("evaluate", batch, mode)

    def load_state(self, state: Mapping[str, Array], *, strict: bool = True) -> None:
        """Go on from another state."""
        self._ask("loadState", state, {"strict": strict})

    def save(self, metadata: Mapping[str, str] | None = None, *, frozen: bool = True) -> bytes:
        """A checkpoint."""
        options = {"metadata": metadata or {}, "frozen": frozen}
        return base64.b64decode(self.node.ask(write=self.number, method="save", options=options)["file"])

    def load(self, checkpoint: bytes, *, strict: bool = True, blob: bool = False) -> dict[str, str]:
        """Go on from a checkpoint; its metadata."""
        answer = self.node.ask(read=self.number, file=_base64(checkpoint), blob=blob, options={"strict": strict})
        metadata: dict[str, str] = answer["metadata"]
        return metadata

    def export(self, *, averaged: bool = False) -> bytes:
        """The trained network."""
        options = {"averaged": averaged}
        return base64.b64decode(self.node.ask(write=self.number, method="export", options=options)["file"])

    @property
    def seed(self) -> int:
        """The seed of the next step."""
        return int(self.node.ask(seed=self.number)["seed"])

    @seed.setter
    def seed(self, value: int) -> None:
        self.node.ask(seed=self.number, value=str(value))

    @property
    def learning_rate(self) -> float | list[float]:
        """That of all parameters, or those of the groups."""
        rate: float | list[float] = self.node.ask(rates=self.number)["rates"]
        return rate

    @learning_rate.setter
    def learning_rate(self, rate: float | list[float] | str) -> None:
        self.node.ask(rates=self.number, values=rate)

    def release(self) -> None:
        """Give its memory back."""
        self.node.ask(release=self.number)

    def _ask(self, method: str, tensors: Mapping[str, Array], *options: Any) -> dict[str, Array]:
        encoded = {name: _encoded(array) for name, array in tensors.items()}
        second = {"options": options[0]} if options else {}
        results = self.node.ask(ask=self.number, method=method, tensors=encoded, **second)["results"]
        return {name: _decoded(tensor) for name, tensor in results.items()}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _encoded(array: Array) -> dict[str, Any]:
    return {"type": array.dtype.name, "dims": array.shape, "data": _base64(array.tobytes())}


def _decoded(tensor: Mapping[str, Any]) -> Array:
    return np.frombuffer(base64.b64decode(tensor["data"]), tensor["type"]).reshape(tensor["dims"]).copy()


# --- one op --------------------------------------------------------------------------------------------------------


def without_bfloat16(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with float32 in place of bfloat16, which JavaScript has no tensors of, at its inputs and outputs.

    Casts inside turn one into the other, exactly: every bfloat16 is a float32. For graphs without subgraphs.
    """
    cast = onnx.ModelProto()
    cast.CopyFrom(model)
    graph = cast.graph
    first = [
        helper.make_node("Cast", [outer], [inner], to=TensorProto.BFLOAT16)
        for outer, inner in _renamed(graph.input, [node.input for node in graph.node])
    ]
    last = [
        helper.make_node("Cast", [inner], [outer], to=TensorProto.FLOAT)
        for outer, inner in _renamed(graph.output, [node.output for node in graph.node])
    ]
    nodes = [*first, *graph.node, *last]
    del graph.node[:]
    graph.node.extend(nodes)
    return cast


def _renamed(values: Iterable[onnx.ValueInfoProto], used: Sequence[Any]) -> Iterator[tuple[str, str]]:
    """Make the bfloat16 values float32, and give the nodes another name for each; the old and the new names."""
    for value in values:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            value.type.tensor_type.elem_type = TensorProto.FLOAT
            inner = f"{value.name}_bfloat16"
            for names in used:
                names[:] = [inner if name == value.name else name for name in names]
            yield value.name, inner


def widened(array: Array) -> Array:
    """The array as `without_bfloat16` wants it."""
    return array.astype(np.float32) if array.dtype == BFLOAT16 else array


@functools.cache
def the_node(runtime: str = WEB_PACKAGE) -> Node:
    """The Node process that tests in this Python process share; its first user closes it."""
    return Node(runtime)


def _in_node(
    call: Call,
    self_contained: Callable[[onnx.ModelProto], onnx.ModelProto],
    options: Sequence[tuple[str, Any]] = (),
) -> dict[str, Array]:
    """Compute the outputs of a call.

    Args:
        call: of one op.
        self_contained: what makes its model one that any runtime can run.
        options: of the session.
    """
    key, model = (self_contained, options, *backends.key_of(call)), backends.model_of(call)
    session = the_node().session(key, lambda: self_contained(without_bfloat16(model)), dict(options))
    outputs = session.run({name: widened(array) for name, array in call.given.items()})
    for value in model.graph.output:
        if value.type.tensor_type.elem_type == TensorProto.BFLOAT16:
            wide = outputs[value.name]
            outputs[value.name] = narrow = wide.astype(BFLOAT16)
            np.testing.assert_array_equal(wide, narrow.astype(np.float32), "rounded in the model", strict=True)
    return outputs


WEB = Backend("web", functools.partial(_in_node, self_contained=onnx_ops.link), portable=True)
WEB_AS_WRITTEN = Backend(
    "web_unoptimised",
    functools.partial(_in_node, self_contained=onnx_ops.link, options=(("graphOptimizationLevel", "disabled"),)),
    portable=True,
)
WEB_INLINED = Backend("web_inlined", functools.partial(_in_node, self_contained=onnx_ops.inline), portable=True)
