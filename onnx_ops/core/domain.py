"""The identity of the op domain."""

from __future__ import annotations

import re
from typing import NamedTuple

import onnx
from onnx import helper

DOMAIN = "aclnn"
OPSET_VERSION = 1
"""The newest version. A model that imports version n gets of each op the newest version up to n, as in ONNX itself."""

KERNEL_DOMAIN = "ai.onnx.contrib"
"""Where onnxruntime-extensions puts the kernels it hosts."""


def kernel_name(op_type: str, version: int) -> str:
    """Name in `KERNEL_DOMAIN` of the kernel of a version of an op, and of its function body.

    Kernels are registered for all versions of that domain, so the name is what keeps a kernel from running a model that
    was linked with another version of the op.
    """
    return f"{DOMAIN}_{op_type}_v{version}"


INLINED = "_inlfunc_"
"""Prefix of onnxruntime for values of inlined functions, followed by the function's name and the value's name."""
OMITTED = f"{DOMAIN}.output."
"""Prefix of optional outputs in the function that calls the kernel of an op. A node without such an output leaves its
value this name in a session, after INLINED and the function's name, though nothing reads it."""


def is_omitted(output: str) -> bool:
    """Whether an output of a kernel, by its name in a session, is one that the node does not have."""
    return not output or (output.startswith(INLINED) and f"_{OMITTED}" in output)


class KernelName(NamedTuple):
    """What the name of a kernel is made of."""

    prefix: str
    op_type: str
    version: int

    @classmethod
    def parsed(cls, name: str) -> KernelName | None:
        """The parts of a name, possibly with a prefix; None for any other name.

        Models linked by early versions of onnx_ops have names without a version, for ops of version 1.
        """
        found = _KERNEL_NAME.fullmatch(name)
        return cls(found[1], found[2], int(found[3] or 1)) if found else None


_KERNEL_NAME = re.compile(rf"(.*){DOMAIN}_([A-Za-z0-9]+)(?:_v([1-9][0-9]{{0,8}}))?")


def opset_import() -> onnx.OperatorSetIdProto:
    """What a model with ops of this domain lists in its opset_import."""
    return helper.make_opsetid(DOMAIN, OPSET_VERSION)
