"""The format of step files and checkpoints: the names and roles of what they hold, and the version.

Nothing else in Python spells these names. scripts/web/training/format.js has those that JavaScript needs; a test
compares them.

Readers ignore unknown keys. A change that earlier readers may ignore raises the minor version; one that they would
misread, such as a new role, raises the major version, and they refuse the file.
"""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Iterable
from typing import NamedTuple

# --- the version ------------------------------------------------------------------------------------------------------


class FormatVersion(NamedTuple):
    """The version of a file's format."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


FORMAT = FormatVersion(2, 0)
"""The newest version that can be read, and what is written of a step with conditions."""

UNCONDITIONAL = FormatVersion(1, 1)
"""What is written of other steps and of checkpoints: earlier readers would not check conditions."""

UNVERSIONED = FormatVersion(1, 0)
"""The version of files without one."""

_VERSION = re.compile(r"([1-9][0-9]{0,8})\.[0-9]{1,9}")


def check_format(found: object) -> None:
    """Raise ValueError for the version in a file if it is invalid or its major version is newer."""
    named = _VERSION.fullmatch(found) if isinstance(found, str) else None
    if named is None:
        raise ValueError(f'its format version is {json.dumps(found)}, expected a string such as "{FORMAT}"')
    if int(named[1]) > FORMAT.major:
        raise ValueError(f"its format version is {found}, expected at most {FORMAT}: update onnx_ops")


# --- the keys of metadata ---------------------------------------------------------------------------------------------

STEP_METADATA = "onnx_ops.step"
"""Of a model: the roles of the inputs of a step."""

RUN_METADATA = "onnx_ops.training"
"""Of a checkpoint: the progress of a training in epochs."""

WEIGHTS_METADATA = "onnx_ops.weights"
"""Of a model: the safetensors file with its external data, and the checksum in that file."""

FORMAT_METADATA = "onnx_ops.format"
"""Of a checkpoint: the version of its format."""

CHECKSUM_METADATA = "onnx_ops.sha256"
"""Of a checkpoint: the checksum of its other contents."""

# --- graphs that a step carries ---------------------------------------------------------------------------------------

CARRIED_DOMAIN = "onnx_ops.training"
"""Domain of functions that no node calls, and that a model carries as data."""

INFERENCE = "inference"
"""The function of that domain that is the inference graph."""

EVALUATION = "evaluation"
"""The function of that domain that is the loss in evaluation mode."""

IN_PLACE = "in_place"
"""The function of that domain with the step whose state can be updated in place."""

ACCUMULATION = "accumulation"
"""The function of that domain with the part of the step that adds gradients to their means."""

COUNTERS = "counters"
"""The function of that domain with the buffers that change with each batch, but depend on no gradient."""

UPDATE = "update"
"""The function of that domain with the update from means of gradients."""

CHECK_FINITE = "onnx_ops.check_finite"
"""An input of these graphs, a bool: whether a loss that is not finite is refused; some have no such check."""

PREPARED_METADATA = "onnx_ops.prepared"
"""Of a model in one of the last four: the names of its inputs and outputs that are not those of the step."""

# --- inputs -----------------------------------------------------------------------------------------------------------


class InputRole(enum.StrEnum):
    """The role of an input of a step; inputs of the batch have none."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    OPTIMIZER = "optimizer"
    SEED = "seed"
    SETTING = "setting"


SEED = "seed"
"""The input that seeds random numbers."""

INPUT = "input"
"""The batch of a loss whose parameters have no names; of several arguments `input.0`, `input.1`, ..."""

LEARNING_RATE = "learning_rate"
"""The setting of a step's only group of parameters; of several groups `learning_rate.0`, `learning_rate.1`, ..."""

GRAD_SCALE = "grad_scaler.scale"
"""The factor of the loss in a step that scales it; a part of the optimizer's state."""

GROWTH_TRACKER = "grad_scaler.growth_tracker"
"""The number of steps since that factor changed."""

AVERAGED = "averaged."
"""Prefix of the inputs that are averages of weights, before the names in the state_dict of PyTorch's AveragedModel."""

AVERAGES_COUNT = f"{AVERAGED}n_averaged"
"""The number of steps in these averages."""


def average_name(name: str) -> str:
    """The input that is the average of a parameter or buffer."""
    return f"{AVERAGED}module.{name}"


def learning_rate_name(group: int, groups: int) -> str:
    """The input that is a group's learning rate."""
    return LEARNING_RATE if groups == 1 else f"{LEARNING_RATE}.{group}"


def learning_rate_names(names: Iterable[str]) -> list[str]:
    """The names that are learning rates, in the given order."""
    return [name for name in names if name == LEARNING_RATE or name.startswith(f"{LEARNING_RATE}.")]


def optimizer_name(key: str, parameter: str | None = None) -> str:
    """The input that is an optimizer's state for a parameter, or for all of them."""
    return ".".join(filter(None, ("optimizer", key, parameter)))


# --- outputs and values -----------------------------------------------------------------------------------------------

NEXT = "next."
"""Prefix of an output that is the next value of an input."""

GRADIENT = "grad."
"""Prefix of a value that is the gradient with respect to a parameter or an argument."""

LOSS = "loss"
"""The output that is the loss of a captured step."""

CONDITIONS = "condition.holds"
"""An output of a captured step: which of its conditions hold."""

CONDITION_NUMBERS = "condition.numbers"
"""An output of a captured step: the numbers that its conditions depend on, as float64."""

OUTPUT = "output"
"""A further reported output of a captured step, or the output of its inference graph; several are `output.0`, ..."""
