"""What each op corresponds to in CANN: the aclnn function and the operator of graphs (GE).

Source: the documents and definitions of the operators in CANN's repository ops-nn 9.1 (gitcode.com/cann/ops-nn: `docs`,
`op_graph` and `op_host` of each operator); for what it does not have (BatchNormStats, KlDiv, dropout) the
documents of the aclnn functions.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping

from onnx_ops.ascend import correspondences
from onnx_ops.ascend.records import Correspondence


def _found() -> Mapping[str, Correspondence]:
    found: dict[str, Correspondence] = {}
    for family in pkgutil.iter_modules(correspondences.__path__, f"{correspondences.__name__}."):
        found |= importlib.import_module(family.name).CORRESPONDENCES
    return found


CORRESPONDENCES = _found()
"""By op, those of all files of `correspondences`; an op that is not in it has a name of this package's own."""

OWN = Correspondence(None, None, "CANN's list of aclnn functions does not have this name: it is this package's own.")


def correspondence(op_type: str) -> Correspondence:
    """What an op corresponds to."""
    return CORRESPONDENCES.get(op_type, OWN)
