"""The base class of all errors of the package, and errors for invalid input."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator


class Error(Exception):
    """Base class of all exceptions that this package defines.

    Each has a base class of Python too (ValueError, RuntimeError or OSError) and can be caught as that.
    """


class Status(enum.IntEnum):
    """Status codes of aclnn for rejected calls."""

    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002


class OpError(Error, ValueError):
    """A call that an op rejects.

    The message is "Op: problem (STATUS, code)", where the problem names the input, what came and what was expected; if
    the node is known, "Op: problem; node (STATUS, code)".

    Attributes:
        op_type: the op.
        problem: what is wrong.
        status: status code of aclnn.
        node: description of the node as in `node_label`; None if unknown.
    """

    def __init__(
        self,
        op_type: str,
        problem: str,
        status: Status = Status.ACLNN_ERR_PARAM_INVALID,
        node: str | None = None,
    ) -> None:
        super().__init__(op_type, problem, status, node)  # the arguments of pickle and copy
        self.op_type = op_type
        self.problem = problem
        self.status = status
        self.node = node

    def __str__(self) -> str:
        where = f"; {self.node}" if self.node else ""
        return f"{self.op_type}: {self.problem}{where} ({self.status.name}, {self.status.value})"


class LinkError(Error, ValueError):
    """A model that `link` cannot make self-contained."""


class KernelsUnavailableError(Error, RuntimeError):
    """The kernels cannot be registered with the onnxruntime of this process."""


def is_of_onnxruntime(error: Exception) -> bool:
    """Whether onnxruntime has raised an exception, and no signal handler; its exceptions have no base class."""
    return type(error) is RuntimeError or type(error).__module__.startswith("onnxruntime")


def node_label(name: str, output: str = "", place: str = "") -> str | None:
    """Description of a node for error messages: "node 'name' in function me.f".

    Args:
        name: name of the node, or "".
        output: its first output, which identifies a node without a name.
        place: the function or subgraph that contains it; "" for the graph of the model.

    Returns:
        The description; None for a node with neither name nor output.
    """
    if not name and not output:
        return None
    known = f"node '{name}'" if name else f"node with output '{output}'"
    return f"{known} in {place}" if place else known


@contextlib.contextmanager
def at_node(label: str | None) -> Iterator[None]:
    """Within this context, an OpError without a node gets this one."""
    try:
        yield
    except OpError as refusal:
        refusal.node = refusal.node or label
        raise
