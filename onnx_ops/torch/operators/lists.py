"""Operators of lists of tensors, by which averages of parameters are updated, as operators of each tensor."""

from __future__ import annotations

import functools

import torch

from onnx_ops.torch.base.table import decomposes

for _name in torch._C._dispatch_get_all_op_names():
    _packet, _, _overload = _name.removeprefix("aten::").partition(".")
    if _packet.startswith("_foreach_") and not _overload.endswith("out"):
        _operator = getattr(getattr(torch.ops.aten, _packet), _overload or "default")
        decomposes(_operator)(functools.partial(_operator._op_dk, torch._C.DispatchKey.CompositeExplicitAutograd))
