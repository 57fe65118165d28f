"""What Sort corresponds to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import Aclnn, Correspondence, GeAttribute, GeOperator

CORRESPONDENCES = {
    "Sort": Correspondence(
        Aclnn(
            "Sort",
            {"self": "self", "dim": "dim", "descending": "descending", "valuesOut": "values", "indicesOut": "indices"},
            differences=("aclnn's `stable` says whether equal elements keep their order, as they do here.",),
        ),
        GeOperator(
            "Sort",
            {"x": "self"},
            {"y1": "values", "y2": "indices"},
            {"axis": GeAttribute("Int", "dim"), "descending": GeAttribute("Bool", "descending")},
        ),
    ),
}
