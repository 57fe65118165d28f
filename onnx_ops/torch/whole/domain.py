"""Nodes of this domain, for translations."""

from __future__ import annotations

from onnxscript.values import Opset

from onnx_ops.core.domain import DOMAIN, OPSET_VERSION

aclnn = Opset(DOMAIN, OPSET_VERSION)
