"""What bad input gets."""

import enum


class Status(enum.IntEnum):
    """The aclnn status codes that a refused call stands for."""

    ACLNN_ERR_PARAM_NULLPTR = 161001
    ACLNN_ERR_PARAM_INVALID = 161002


class OpError(ValueError):
    """A call that an op refuses. Its text names the op, the input, what came, what was expected, and the status.

    Attributes:
        op_type: the op that refuses.
        status: the aclnn status the refusal stands for.
    """

    def __init__(self, op_type: str, problem: str, status: Status = Status.ACLNN_ERR_PARAM_INVALID) -> None:
        super().__init__(f"{op_type}: {problem} ({status.name}, {status.value})")
        self.op_type = op_type
        self.status = status


class LinkError(ValueError):
    """A model that `link` cannot make self-contained."""


class KernelsUnavailable(RuntimeError):
    """The kernels cannot be registered with the onnxruntime of this process."""
