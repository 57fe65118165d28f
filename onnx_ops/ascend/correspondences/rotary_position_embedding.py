"""What the ops of `onnx_ops.ops.rotary_position_embedding` correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    MIXED,
    NO_DOUBLE,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

SHAPES = (
    "Tensors of another rank than 4, 896 features or more (1,024 on some processors), and `cos` and `sin` of other"
    " shapes than the layouts of the documents have."
)
MODE = {"mode": GeAttribute("Int", "mode")}

CORRESPONDENCES = {
    "RotaryPositionEmbedding": Correspondence(
        Aclnn(
            "RotaryPositionEmbedding",
            {**same("x", "cos", "sin", "mode"), "out": "y"},
            refused=(NO_DOUBLE, MIXED, SHAPES),
        ),
        GeOperator("RotaryPositionEmbedding", same("x", "cos", "sin"), same("y"), MODE),
    ),
    "RotaryPositionEmbeddingGrad": Correspondence(
        Aclnn(
            "RotaryPositionEmbeddingGrad",
            {
                **same("dy", "cos", "sin"),
                "xOptional": "x",
                "mode": "mode",
                "dxOut": "dx",
                "dcosOut": "dcos",
                "dsinOut": "dsin",
            },
            refused=(NO_DOUBLE, MIXED, SHAPES),
        ),
        GeOperator("RotaryPositionEmbeddingGrad", same("dy", "cos", "sin", "x"), same("dx", "dcos", "dsin"), MODE),
    ),
}
