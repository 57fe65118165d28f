"""Random calls with attributes from the ends of their types, in child processes: computed right, or refused in words.

As a program, `python extreme_attributes.py SEED BEGIN END` runs the cases of these numbers and writes a line before and
after each of them. What ends the process, a crash or a time limit, is so known to be of the last case begun.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import backends
import numpy as np
import onnx
import onnxruntime as ort
from backends import Array, Backend, Call
from numpy.random import Generator
from onnx import helper

import onnx_ops
from onnx_ops.core.types import TensorType
from onnx_ops.ops import OPS
from tests.ops import (
    RECORDS,
    convolution,
    convolution_backward,
    depthwise_conv2d,
    depthwise_conv2d_backprop_filter,
    depthwise_conv2d_backprop_input,
    max_pool2d_with_indices,
    max_pool2d_with_indices_backward,
)

OP_NAMES = tuple(name for name, record in RECORDS.items() if record.attributes)
SECONDS = 30
"""A case takes a small part of it, kernels being compiled."""
MEMORY = 1 << 33
"""Address space of a child, in bytes."""
INTEGERS = (0, 1, 2, 3, 5, 2**8, 2**15, 2**20, 2**31, 2**32, 2**33, 2**48, 2**53, 2**61, 2**62, 2**63)
NUMBERS = (0.0, 0.5, 1.0, 1e-45, 1e-30, 1e30, 3.4e38, math.inf, math.nan)
LARGE = 2**20
SIZES = dict.fromkeys(("num_weights", "num_rows", "input_size", "filter_size", "kernel_size"), LARGE)
SIZES |= {"pads": LARGE >> 4, "padding": LARGE >> 4}
"""Attributes that say how large a result is, or how much there is to look at, with the largest number that is drawn.

Those between it and BEYOND are computed too, in all the time and memory that it takes.
"""
BEYOND = 2**32
PROBABILITIES = {"keep_prob"}


# --- what is drawn ---------------------------------------------------------------------------------------------------


def _integer(rng: Generator, name: str) -> int:
    near = int(rng.choice(INTEGERS)) if rng.random() < 0.8 else int(rng.integers(2**63, dtype=np.uint64))
    value = (near + int(rng.integers(-2, 3))) * int(rng.choice([1, 1, 1, -1]))
    value = max(-(2**63), min(value, 2**63 - 1))
    return value + BEYOND if SIZES.get(name, BEYOND) < value < BEYOND else value


def _number(rng: Generator, name: str) -> float:
    value = float(np.float32(rng.choice(NUMBERS) * rng.choice([1, -1])))
    # Numbers over a probability overflow in float32, and then cancel, where those of the oracle are finite.
    return math.copysign(1e-30, value) if name in PROBABILITIES and 0 < abs(value) < 1e-30 else value


def _list(rng: Generator, name: str, plain: tuple[int, ...], spatial: int) -> tuple[int, ...]:
    """A list in which some numbers are extreme, and the others plain."""
    usual = plain or ((0,) * 2 * spatial if name == "pads" else (int(name != "padding"),) * spatial)
    return tuple(_integer(rng, name) if rng.random() < 0.4 else number for number in usual)


@dataclass(frozen=True)
class Windows:
    """What an op calls its windows.

    Attributes:
        size: the attribute with the sizes of windows, or the input that has them along its spatial axes.
        length: the input that windows move over, or the attribute with its channels and sizes.
        stride, padding, dilation: attributes.
        counted: the inputs with an element for each window.
    """

    size: str
    length: str
    stride: str = "strides"
    padding: str = "pads"
    dilation: str = "dilations"
    counted: tuple[str, ...] = ("out_backprop",)


POOL = Windows("kernel_size", "self", "stride", "padding", "dilation", ())
CONVOLUTION = Windows("weight", "input", "stride", "padding", "dilation", ())
WINDOWS = {
    convolution.OP: CONVOLUTION,
    convolution_backward.OP: replace(CONVOLUTION, counted=("grad_output",)),
    max_pool2d_with_indices.OP: POOL,
    max_pool2d_with_indices_backward.OP: replace(POOL, counted=("grad_output", "indices")),
    depthwise_conv2d.OP: Windows("filter", "input", counted=()),
    depthwise_conv2d_backprop_input.OP: Windows("filter", "input_size"),
    depthwise_conv2d_backprop_filter.OP: Windows("filter_size", "input"),
}


def _wrapping(rng: Generator, plain: Call) -> Call:
    """A call whose windows are too large along an axis, but not so in arithmetic that wraps at 64 bits."""
    own, given = WINDOWS[plain.op], plain.given
    sizes = list(given[own.size].shape[2:] if own.size in given else plain.attributes.get(own.size, (2, 2)))
    spatial, power = len(sizes), int(rng.choice([*range(1, 19), *range(33, 62)]))
    length = plain.attributes[own.length][1] if own.length in plain.attributes else given[own.length].shape[-spatial]
    stride, before, dilation = 1, 0, 1
    kind = rng.integers(3)
    if kind == 0 and own.size not in given:
        sizes[0], dilation = 2**power + 1, 2 ** min(64 - power, 62)
    elif kind == 1:
        dilation = (2**64 - int(rng.integers(4))) // max(sizes[0] - 1, 2)
    else:
        before = stride = 2**62 - int(rng.integers(2))
    dilation = min(dilation, 2**63 - 1)
    span = (length + before - dilation * (sizes[0] - 1) - 1 + 2**63) % 2**64 - 2**63
    count = min(max(span // stride + 1, 1), 12)
    rest, padding = (1,) * (spatial - 1), own.padding == "padding"
    attributes = {
        own.stride: (stride, *rest),
        own.padding: (0 if padding else before, *(0,) * (spatial - 1), *(() if padding else (0,) * spatial)),
        own.dilation: (dilation, *rest),
    }
    if own.size not in given:
        attributes[own.size] = tuple(sizes)
    counted = {name: _with_count(given[name], given[name].ndim - spatial, count) for name in own.counted}
    return replace(plain.but(counted), attributes=plain.attributes | attributes)


def _with_count(array: Array, axis: int, count: int) -> Array:
    return np.take(array, np.arange(count) % array.shape[axis], axis)


def case(seed: int, number: int) -> Call:
    """A plain call, one or a few of whose attributes are extreme."""
    rng = np.random.default_rng([seed, 7, number])
    op = OP_NAMES[number % len(OP_NAMES)]
    record, plain = RECORDS[op], RECORDS[op].plain
    if op in WINDOWS and rng.random() < 0.6:
        return replace(_wrapping(rng, plain), label=f"seed {seed}, number {number}")
    attributes = dict(plain.attributes)
    names = list(record.attributes)
    spatial = next((a.ndim for a in plain.given.values()), 2) - 2
    for name in rng.choice(names, min(len(names), 1 + int(rng.integers(3))), replace=False).tolist():
        kind = OPS[op].schema.attributes[name].type
        if kind == onnx.defs.OpSchema.AttrType.INTS:
            attributes[name] = _list(rng, name, tuple(attributes.get(name, ())), spatial)
        elif kind == onnx.defs.OpSchema.AttrType.INT:
            attributes[name] = _integer(rng, name)
        else:
            attributes[name] = _number(rng, name)
    return replace(plain, attributes=attributes, label=f"seed {seed}, number {number}", static=bool(rng.integers(2)))


# --- what must come of it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refused:
    """How the op refuses a call.

    Attributes:
        by_values: whether its shapes are right, and the numbers in an input are not.
    """

    text: str
    by_values: bool

    def is_checked_by(self, backend: Backend, call: Call) -> bool:
        """Whether a backend has to refuse the call; function bodies check neither values nor the shapes of a run."""
        return not backend.portable or (call.static and not self.by_values)


def _refusal(call: Call) -> Refused | None:
    """How the op refuses a call, None if it does not."""
    op = OPS[call.op]
    arrays = [call.inputs.get(name) for name in op.input_names]
    types = [None if array is None else TensorType.of(array) for array in arrays]
    try:
        op.infer(op.call(types, call.attributes))
    except onnx_ops.OpError as error:
        return Refused(str(error), by_values=False)
    try:
        op.check_arrays(arrays, call.attributes)
    except onnx_ops.OpError as error:
        return Refused(str(error), by_values=True)
    return None


def _problems(call: Call) -> Iterator[str]:
    refusal = _refusal(call)
    if refusal and not re.match(rf"{call.op}: (attribute|input|output) '\w+' .*expected ", refusal.text):
        yield f"refused so: {refusal.text}"
    for backend in (*backends.WITH_KERNELS, backends.EVALUATOR, backends.PORTABLE):
        if problem := _problem(backend, call, refusal):
            yield f"{backend}: {problem}"
    _run_unchecked(call)


def _problem(backend: Backend, call: Call, refusal: Refused | None) -> str | None:
    checked = refusal is not None and refusal.is_checked_by(backend, call)
    try:
        backends.check_call(backend, call)
    except BaseException as error:  # pytest.fail raises no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        text = f"{type(error).__name__}: {error}"
        told = checked and call.op in text and "expected" in text and "AssertionError" not in text
        return None if told or (refusal is not None and not checked) else text
    return f"computed, expected {refusal}" if checked else None


def _run_unchecked(call: Call) -> None:
    """Run the attached functions with attributes that were set after the model was linked: any result or exception."""
    record = RECORDS[call.op]
    linked = onnx_ops.link(backends.model_of(replace(call, attributes=record.plain.attributes, static=False)))
    (node,) = linked.graph.node
    del node.attribute[:]
    node.attribute.extend(helper.make_attribute(name, value) for name, value in call.attributes.items())
    with contextlib.suppress(Exception):  # onnxruntime's are of many classes
        session = ort.InferenceSession(linked.SerializeToString(), backends.options())
        backends.run_outputs(session, call.given)


# --- child and parent ------------------------------------------------------------------------------------------------


def _run(seed: int, begin: int, end: int) -> None:
    for op in {case(seed, number).op for number in range(begin, end)}:
        for backend in backends.WITH_KERNELS:
            backend.run(RECORDS[op].plain)  # compiled, or from the cache
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for number in range(begin, end):
        call = case(seed, number)
        print(json.dumps({"number": number, "call": f"{call.op} {call.attributes}, static: {call.static}"}), flush=True)
        signal.alarm(SECONDS)  # ends the process, also in native code
        found = list(_problems(call))
        signal.alarm(0)
        print(json.dumps({"problems": found}), flush=True)


def problems(seed: int, begin: int, end: int) -> list[str]:
    """What is wrong with the cases of some numbers, run in child processes."""
    found: list[str] = []
    here = Path(__file__)
    path = os.pathsep.join([str(here.parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])])
    while begin < end:
        command = [sys.executable, str(here), str(seed), str(begin), str(end)]
        child = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
        lines = [json.loads(line) for line in child.stdout.splitlines()]
        begun = [line for line in lines if "call" in line]
        outcomes = [line["problems"] for line in lines if "problems" in line]
        assert begun, child.stderr
        for line, outcome in zip(begun, outcomes, strict=False):
            found += [f"number {line['number']}, {line['call']}: {problem}" for problem in outcome]
        if child.returncode:
            last = begun[-1]
            end_of = signal.Signals(-child.returncode).name if child.returncode < 0 else child.stderr[-2000:]
            found.append(f"number {last['number']}, {last['call']}: {end_of}")
        begin = begun[-1]["number"] + 1
    return found


if __name__ == "__main__":
    _run(*map(int, sys.argv[1:4]))
