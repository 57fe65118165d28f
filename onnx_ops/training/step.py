"""The metadata of a training step: what its inputs are.

One run of the model of a training step makes one step of training. Its inputs are the state (parameters, buffers,
optimizer state, a seed, settings such as `learning_rate`) and the batch; the metadata of the model list the inputs of
the state with their roles. An initializer with the name of an input of the state is its start value. An output
`next.<x>` is the next value of the input `<x>`; all other outputs are reported. The model may carry the graph of the
trained network, for inference, as a function that no node calls.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx
from onnx import TensorProto

from onnx_ops.core.step_format import (
    CONDITION_NUMBERS,
    CONDITIONS,
    FORMAT,
    NEXT,
    STEP_METADATA,
    UNCONDITIONAL,
    UNVERSIONED,
    InputRole,
    check_format,
)
from onnx_ops.core.types import TensorType
from onnx_ops.graph.metadata import metadata_of, set_metadata
from onnx_ops.graph.types import declared_types
from onnx_ops.training.arrays import byte_count, element_count, tensor_text
from onnx_ops.training.conditions import Condition
from onnx_ops.training.errors import StepError
from onnx_ops.training.ranges import IndexRange

INTEGERS = (
    *(TensorProto.INT8, TensorProto.INT16, TensorProto.INT32, TensorProto.INT64),
    *(TensorProto.UINT8, TensorProto.UINT16, TensorProto.UINT32, TensorProto.UINT64),
)
SCALARS = {InputRole.SEED: (TensorProto.INT64,), InputRole.SETTING: (TensorProto.FLOAT, TensorProto.DOUBLE)}
"""The dtypes of the roles whose inputs are scalars."""


class Bounds(NamedTuple):
    """The range of sizes of a dimension, both ends included.

    Attributes:
        min, max: the ends; None if there is no largest size.
        worker_min: the least size where batch norm has other statistics than those of the batch, if that is less: of
            the batch of one of several workers that share batch norm, and in evaluation mode.
    """

    min: int = 0
    max: int | None = None
    worker_min: int | None = None

    def of_other_statistics(self) -> Bounds:
        """The bounds where batch norm has other statistics than those of the batch."""
        return self if self.worker_min is None else Bounds(self.worker_min, self.max)

    def hold(self, size: int) -> bool:
        """Whether a size is in the range."""
        return self.min <= size and (self.max is None or size <= self.max)

    def __str__(self) -> str:
        return f">= {self.min}" if self.max is None else f"from {self.min} to {self.max}"


@dataclass(frozen=True)
class Step:
    """What the inputs of a training step are.

    Attributes:
        roles: the role of each input of the state, in the order of the inputs; all other inputs are the batch.
        tied: further names of parameters and buffers, each with the name of the input that has its value.
        bounds: the sizes that named dimensions of the batch may have; dimensions without an entry may have any.
        ranges: the ranges of indices among the inputs of the batch.
        conditions: what the outputs CONDITIONS and CONDITION_NUMBERS say, in the order of the first one.
    """

    roles: Mapping[str, InputRole]
    tied: Mapping[str, str] = field(default_factory=dict)
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    ranges: tuple[IndexRange, ...] = ()
    conditions: tuple[Condition, ...] = ()

    @classmethod
    def of(cls, model: onnx.ModelProto) -> Step:
        """Read the metadata of a model; StepError if there are none, or if they do not fit the model."""
        text = metadata_of(model, STEP_METADATA)
        if text is None:
            raise StepError(f"the model is no training step: its metadata have no entry '{STEP_METADATA}'")
        try:
            step = _parsed(text)
        except (ValueError, RecursionError) as error:  # JSON's errors, and brackets nested too deep
            raise StepError(f"the entry '{STEP_METADATA}' of the model's metadata cannot be read: {error}") from error
        step._check(model)
        return step

    def write_into(self, model: onnx.ModelProto) -> None:
        """Write the metadata into a model; StepError if they do not fit it."""
        self._check(model)
        version = FORMAT if self.conditions else UNCONDITIONAL
        record: dict[str, object] = {"format": str(version), "roles": dict(self.roles), "tied": dict(self.tied)}
        if self.bounds:
            record["bounds"] = {name: _bounds_entry(bounds) for name, bounds in self.bounds.items()}
        if self.ranges:
            record["ranges"] = [found.entry() for found in self.ranges]
        if self.conditions:
            record["conditions"] = [condition.entry() for condition in self.conditions]
        set_metadata(model, STEP_METADATA, json.dumps(record))

    def names(self, *roles: InputRole) -> list[str]:
        """The inputs that have one of these roles."""
        return [name for name, role in self.roles.items() if role in roles]

    def batch(self, model: onnx.ModelProto) -> dict[str, TensorType]:
        """The types of the inputs of the batch, by name."""
        return {name: tensor for name, tensor in declared_types(model.graph.input).items() if name not in self.roles}

    def state(self, model: onnx.ModelProto) -> dict[str, TensorType]:
        """The types of the inputs of the state, by name."""
        inputs = declared_types(model.graph.input)
        return {name: inputs[name] for name in self.roles}

    def _check(self, model: onnx.ModelProto) -> None:
        inputs, outputs = declared_types(model.graph.input), declared_types(model.graph.output)
        for kind, values in (("input", inputs), ("output", outputs)):
            for name, tensor in values.items():
                if tensor.dtype is None:
                    raise StepError(f"{kind} '{name}' is no tensor of a known dtype")
        for name, role in self.roles.items():
            if name not in inputs:
                raise StepError(f"'{name}' has the role '{role}', but the step has no input of that name")
            _check_role(name, role, inputs[name])
        for name, tensor in outputs.items():
            if name.startswith(NEXT):
                before = name.removeprefix(NEXT)
                if before not in self.roles:
                    raise StepError(f"output '{name}' is the next value of '{before}', which is no state of the step")
                _check_next(name, tensor, inputs[before])
        for other, first in self.tied.items():
            if self.roles.get(first) not in (InputRole.PARAMETER, InputRole.BUFFER):
                raise StepError(f"'{other}' is tied to '{first}', which is no parameter and no buffer of the step")
            if other in inputs:
                raise StepError(f"'{other}' is tied to '{first}', but is an input of its own")
        for found in self.ranges:
            if found.input not in inputs or found.input in self.roles:
                raise StepError(f"'{found.input}' has a range of indices, but is no input of the batch")
            _check_range(found, inputs[found.input])
        self._check_conditions(outputs)

    def _check_conditions(self, outputs: Mapping[str, TensorType]) -> None:
        numbers = {number.place for condition in self.conditions for number in condition.numbers}
        wanted_types = {
            CONDITIONS: TensorType(TensorProto.BOOL, (len(self.conditions),)),
            CONDITION_NUMBERS: TensorType(TensorProto.DOUBLE, (len(numbers),)),
        }
        for name, wanted in wanted_types.items() if self.conditions or CONDITIONS in outputs else ():
            tensor = outputs.get(name)
            if tensor != wanted:
                what = "missing" if tensor is None else tensor_text(tensor)
                raise StepError(f"output '{name}' is {what}, expected {tensor_text(wanted)} for the step's conditions")
        if numbers != set(range(len(numbers))):
            raise StepError(f"the step's conditions depend on the numbers {sorted(numbers)}, expected all from 0 on")


def frozen_names(model: onnx.ModelProto) -> list[str]:
    """The parameters and buffers that a step does not change."""
    changed = {value.name for value in model.graph.output}
    own = Step.of(model).names(InputRole.PARAMETER, InputRole.BUFFER)
    return [name for name in own if NEXT + name not in changed]


def _parsed(text: str) -> Step:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError('expected an object {"format": ..., "roles": ..., "tied": ...}')
    check_format(found.get("format", str(UNVERSIONED)))
    if not {"roles", "tied"} <= found.keys():
        raise ValueError('expected an object {"format": ..., "roles": ..., "tied": ...}')
    for key in ("roles", "tied"):
        entries = found[key]
        if not isinstance(entries, dict) or not all(isinstance(entry, str) for entry in entries.values()):
            raise ValueError(f"'{key}' is not an object of strings")
    known = {role.value for role in InputRole}
    for name, role in found["roles"].items():
        if role not in known:
            raise ValueError(f"'{name}' has the role '{role}', expected one of {', '.join(sorted(known))}")
    roles = {name: InputRole(role) for name, role in found["roles"].items()}
    bounds = found.get("bounds", {})
    if not isinstance(bounds, dict):
        raise ValueError("'bounds' is not an object")
    for key in ("ranges", "conditions"):
        if not isinstance(found.get(key, []), list):
            raise ValueError(f"'{key}' is no list")
    return Step(
        roles,
        found["tied"],
        {name: _parsed_bounds(name, entry) for name, entry in bounds.items()},
        tuple(map(IndexRange.of_entry, found.get("ranges", []))),
        tuple(map(Condition.of_entry, found.get("conditions", []))),
    )


def _bounds_entry(bounds: Bounds) -> dict[str, int | None]:
    entry = bounds._asdict()
    if bounds.worker_min is None:
        del entry["worker_min"]
    return entry


def _parsed_bounds(name: str, entry: object) -> Bounds:
    if isinstance(entry, dict) and {"min", "max"} <= entry.keys():
        least, most, worker_min = entry["min"], entry["max"], entry.get("worker_min")
        if (
            type(least) is int
            and least >= 0
            and (most is None or (type(most) is int and most >= least))
            and (worker_min is None or (type(worker_min) is int and 0 <= worker_min <= least))
        ):
            return Bounds(least, most, worker_min)
    raise ValueError(f"'bounds' has {json.dumps(entry)} for '{name}', expected {{\"min\": ..., \"max\": ...}}")


def _check_role(name: str, role: InputRole, tensor: TensorType) -> None:
    if tensor.dtype is None or tensor.shape is None or not all(isinstance(d, int) for d in tensor.shape):
        raise StepError(f"input '{name}' has the role '{role}' and is {tensor_text(tensor)}, expected a fixed shape")
    if role in SCALARS and (tensor.dtype not in SCALARS[role] or tensor.shape):
        wanted = " or ".join(tensor_text(TensorType(dtype, ())) for dtype in SCALARS[role])
        raise StepError(f"input '{name}' has the role '{role}' and is {tensor_text(tensor)}, expected {wanted}")


def _check_range(found: IndexRange, tensor: TensorType) -> None:
    if tensor.dtype not in INTEGERS or not found.fits(len(tensor.shape or ())):
        raise StepError(f"input '{found.input}' is {tensor_text(tensor)}, which does not fit its range of indices")


def _check_next(name: str, tensor: TensorType, before: TensorType) -> None:
    assert before.shape is not None
    fits = tensor.dtype == before.dtype and (
        tensor.shape is None
        or (
            len(tensor.shape) == len(before.shape)
            and all(not isinstance(d, int) or d == b for d, b in zip(tensor.shape, before.shape, strict=True))
        )
    )
    if not fits:
        raise StepError(f"output '{name}' is {tensor_text(tensor)}, expected that of the input, {tensor_text(before)}")


# --- sizes ------------------------------------------------------------------------------------------------------------


def summary(model: onnx.ModelProto) -> str:
    """The number of parameters, the size of the state, and the inputs of the batch with dtypes and shapes."""
    batch = ", ".join(f"{name} {tensor_text(tensor)}" for name, tensor in Step.of(model).batch(model).items())
    state = bytes_text(state_bytes(model))
    return f"{parameter_count(model):,} parameters, state of {state}, batch inputs: {batch or 'none'}"


def parameter_count(model: onnx.ModelProto, *, frozen: bool = True) -> int:
    """The number of elements of all parameters of a step, or of those that it changes."""
    step = Step.of(model)
    state, left_out = step.state(model), [] if frozen else frozen_names(model)
    return sum(element_count(state[name]) for name in step.names(InputRole.PARAMETER) if name not in left_out)


def state_bytes(model: onnx.ModelProto) -> int:
    """The memory of the state of a step."""
    return sum(byte_count(tensor) for tensor in Step.of(model).state(model).values())


def bytes_text(size: int) -> str:
    """A size in memory: "52 bytes", "1.2 kB", "3.4 MB", "5.6 GB"."""
    if size < 1000:
        return f"{size} bytes"
    power = min(int(math.log10(size)) // 3, 3)
    return f"{size / 1000**power:,.1f} {('kB', 'MB', 'GB')[power - 1]}"
