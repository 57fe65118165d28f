"""What ApplyAdamW and FusedSgd correspond to in CANN."""

from __future__ import annotations

from onnx_ops.ascend.records import (
    COMPOSED,
    NO_DOUBLE,
    RANK_0,
    Aclnn,
    Correspondence,
    GeAttribute,
    GeOperator,
    same,
)

CORRESPONDENCES = {
    "ApplyAdamW": Correspondence(
        Aclnn(
            "ApplyAdamW",
            {
                "varRef": "var, var_out",
                "mRef": "m, m_out",
                "vRef": "v, v_out",
                "beta1Power": "beta1_power",
                "beta2Power": "beta2_power",
                "lr": "lr",
                "weightDecay": "weight_decay",
                "beta1": "beta1",
                "beta2": "beta2",
                "eps": "epsilon",
                "grad": "grad",
                "maxGradNormOptional": "max_grad_norm, max_grad_norm_out",
                "amsgrad": "given with `max_grad_norm`",
                "maximize": "maximize",
            },
            differences=(
                "aclnn updates its tensors in place; a node has outputs for the new values.",
                "beta1Power and beta2Power are the powers of the steps before this one, which aclnn multiplies by beta1"
                " and beta2; `beta1_power` and `beta2_power` include this step.",
            ),
            refused=(NO_DOUBLE, "Settings of another dtype than `var`, which keep their precision.", RANK_0),
        ),
        GeOperator(
            "ApplyAdamW",
            {
                **same("var", "m", "v", "beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2"),
                **same("epsilon", "grad", "max_grad_norm"),
            },
            {"var": "var_out", "m": "m_out", "v": "v_out"},
            {"maximize": GeAttribute("Bool", "maximize")},
            given={"amsgrad": "max_grad_norm"},
            divided={"beta1_power": "beta1", "beta2_power": "beta2"},
        ),
    ),
    "FusedSgd": Correspondence(
        Aclnn(
            "FusedSgd",
            {
                "paramsRef": "param, param_out",
                "gradsRef": "grad",
                "momentumBufferListOptionalRef": "momentum_buffer, momentum_buffer_out",
                "gradScaleOptional": "none: divide `grad` by it",
                "weightDecay": "weight_decay",
                **same("momentum", "lr", "dampening", "nesterov", "maximize"),
                "isFirstStep": "none: a `momentum_buffer` and a `dampening` of 0",
            },
            differences=(
                "aclnn updates lists of tensors in place; a node updates one parameter, and has outputs for the new"
                " values.",
            ),
            refused=(NO_DOUBLE,),
        ),
        None,
        COMPOSED,
    ),
}
