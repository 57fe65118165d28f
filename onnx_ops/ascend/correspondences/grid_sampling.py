"""What the ops of `onnx_ops.ops.grid_sampling` correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import Aclnn, Correspondence, GeAttribute, GeOperator, same

MODES = {
    "interpolationMode": "interpolation_mode",
    "paddingMode": "padding_mode",
    "alignCorners": "align_corners",
}
ATTRIBUTES = {
    "interpolation_mode": GeAttribute("String", "interpolation_mode"),
    "padding_mode": GeAttribute("String", "padding_mode"),
    "align_corners": GeAttribute("Bool", "align_corners"),
}
REFUSED = {"2D": ("Gradients of bicubic interpolation.",), "3D": ()}


def _sampler(axes: str) -> Correspondence:
    name = f"GridSampler{axes}"
    return Correspondence(
        Aclnn(name, {**same("input", "grid"), **MODES, "out": "out"}),
        GeOperator(name, {"x": "input", "grid": "grid"}, {"y": "out"}, ATTRIBUTES),
    )


def _gradient(axes: str) -> Correspondence:
    name = f"GridSampler{axes}"
    return Correspondence(
        Aclnn(
            f"{name}Backward",
            {
                "gradOutput": "grad_output",
                **same("input", "grid"),
                **MODES,
                "outputMask": "given with the outputs that a node names",
                "inputGrad": "input_grad",
                "gridGrad": "grid_grad",
            },
            refused=REFUSED[axes],
        ),
        GeOperator(
            f"{name}Grad",
            {"grad": "grad_output", "x": "input", "grid": "grid"},
            {"dx": "input_grad", "dgrid": "grid_grad"},
            ATTRIBUTES,
        ),
    )


CORRESPONDENCES = {
    **{f"GridSampler{axes}": _sampler(axes) for axes in ("2D", "3D")},
    **{f"GridSampler{axes}Backward": _gradient(axes) for axes in ("2D", "3D")},
}
