"""The format of step files and checkpoints: the names and roles of what they hold, and the version.

Nothing else in Python spells these names. scripts/web/training/format.js has those that JavaScript needs; a test
compares them.

A reader ignores keys that it does not know. A change that earlier readers may ignore raises the minor version; one that
they would misread, such as a new role, raises the major version, and they refuse the file.
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


FORMAT = FormatVersion(1, 0)
"""What is written, and the newest version that can be read."""

UNVERSIONED = FormatVersion(1, 0)
"""The version of files that do not name one."""

_VERSION = re.compile(r"([1-9][0-9]{0,8})\.[0-9]{1,9}")


def check_format(found: object) -> None:
    """Refuse the version that a file names, with a ValueError, if it is none or its major version is newer."""
    named = _VERSION.fullmatch(found) if isinstance(found, str) else None
    if named is None:
        raise ValueError(f'its format version is {json.dumps(found)}, expected a string such as "{FORMAT}"')
    if int(named[1]) > FORMAT.major:
        raise ValueError(f"its format version is {found}, expected at most {FORMAT}: update onnx_ops")


# --- the keys of metadata ---------------------------------------------------------------------------------------------

STEP_METADATA = "onnx_ops.step"
"""Of a model: under this key a step says what its inputs are."""

RUN_METADATA = "onnx_ops.training"
"""Of a checkpoint: how far a training in epochs has come."""

FORMAT_METADATA = "onnx_ops.format"
"""Of a checkpoint: the version of its format."""

CHECKSUM_METADATA = "onnx_ops.sha256"
"""Of a checkpoint: the checksum of all else in it."""

# --- the inference graph ----------------------------------------------------------------------------------------------

CARRIED_DOMAIN = "onnx_ops.training"
"""Domain of functions that no node calls, which a model carries as data."""

INFERENCE = "inference"
"""The function of that domain that is the inference graph."""

# --- inputs -----------------------------------------------------------------------------------------------------------


class InputRole(enum.StrEnum):
    """What an input of a step is, unless it belongs to the batch."""

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


def learning_rate_name(group: int, groups: int) -> str:
    """The input that is a group's learning rate."""
    return LEARNING_RATE if groups == 1 else f"{LEARNING_RATE}.{group}"


def learning_rate_names(names: Iterable[str]) -> list[str]:
    """Those of the settings of a step that are learning rates."""
    return [name for name in names if name == LEARNING_RATE or name.startswith(f"{LEARNING_RATE}.")]


def optimizer_name(key: str, parameter: str | None = None) -> str:
    """The input that is an optimizer's state of a parameter, or of all of them."""
    return ".".join(filter(None, ("optimizer", key, parameter)))


# --- outputs and values -----------------------------------------------------------------------------------------------

NEXT = "next."
"""What the name of an output begins with that is an input's next value."""

GRADIENT = "grad."
"""What the name of a value begins with that is the gradient with respect to a parameter or an argument."""

LOSS = "loss"
"""The output that is the loss of a captured step."""

OUTPUT = "output"
"""What else a captured step reports, and what its inference graph returns; of several `output.0`, `output.1`, ..."""
