"""What bad input gets."""

from __future__ import annotations

import contextlib
import enum
from collections.abc import Iterator


class Status(enum.IntEnum):
    """The aclnn status codes that a refused call stands for."""

    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002


class OpError(ValueError):
    """A call that an op refuses.

    Its text is "Op: problem (STATUS, code)", where the problem names the input, what came and what was expected; where
    the node is known, "Op: problem; node (STATUS, code)".

    Attributes:
        op_type: the op that refuses.
        problem: what is wrong.
        status: the aclnn status the refusal stands for.
        node: which node it is, as in `node_label`; None where that is not known.
    """

    def __init__(
        self,
        op_type: str,
        problem: str,
        status: Status = Status.ACLNN_ERR_PARAM_INVALID,
        node: str | None = None,
    ) -> None:
        super().__init__(op_type, problem, status, node)  # what pickle and copy make another one of
        self.op_type = op_type
        self.problem = problem
        self.status = status
        self.node = node

    def __str__(self) -> str:
        where = f"; {self.node}" if self.node else ""
        return f"{self.op_type}: {self.problem}{where} ({self.status.name}, {self.status.value})"


class LinkError(ValueError):
    """A model that `link` cannot make self-contained."""


class KernelsUnavailable(RuntimeError):
    """The kernels cannot be registered with the onnxruntime of this process."""


def node_label(name: str, output: str = "", place: str = "") -> str | None:
    """How a refusal names a node: "node 'name' in function me.f".

    Args:
        name: the node's name, which may be empty.
        output: its first output, by which a node without a name is known.
        place: the function or subgraph that it stands in; empty for the graph of the model.

    Returns:
        None for a node that has neither name nor output.
    """
    if not name and not output:
        return None
    known = f"node '{name}'" if name else f"node with output '{output}'"
    return f"{known} in {place}" if place else known


@contextlib.contextmanager
def at_node(label: str | None) -> Iterator[None]:
    """Refusals that come from inside name this node, unless they name one already."""
    try:
        yield
    except OpError as refusal:
        refusal.node = refusal.node or label
        raise
