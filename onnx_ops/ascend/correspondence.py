"""What each op corresponds to in CANN: the aclnn function and the operator of graphs (GE).

Source: the documents and definitions of the operators in CANN's repository ops-nn 9.1 (gitcode.com/cann/ops-nn: `docs`,
`op_graph` and `op_host` of each operator); for what it does not have (BatchNormStats, KlDiv, dropout) the
documents of the aclnn functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["Float", "Int", "Bool", "String", "ListInt"]
Constant = bool | int | str


@dataclass(frozen=True)
class Aclnn:
    """An aclnn function.

    Attributes:
        name: without the prefix.
        arguments: its arguments in order, without workspaceSize and executor: for each the input, attribute or output
            here, or words for one that has none.
        differences: of meaning, and between documents of CANN; sentences.
        refused: what aclnn rejects and this package computes; sentences.
        missing: what aclnn accepts and this package does not have; sentences.
    """

    name: str
    arguments: Mapping[str, str]
    differences: Sequence[str] = ()
    refused: Sequence[str] = ()
    missing: Sequence[str] = ()


@dataclass(frozen=True)
class GeAttribute:
    """An attribute of an operator of a graph.

    Attributes:
        kind: its type.
        source: the attribute here.
        empty: what replaces an empty list: numbers, or the name of another attribute here.
        default: its default, if that is not the one here.
    """

    kind: Kind
    source: str
    empty: tuple[int, ...] | str | None = None
    default: Constant | float | None = None


@dataclass(frozen=True)
class GeOperator:
    """An operator of a graph (GE), as REG_OP or its definition in CANN declares it.

    Attributes:
        name: its type.
        inputs: in its order, with the input here.
        outputs: likewise; outputs here that it does not have come last in the schema.
        attributes: by its names.
        constants: attributes that have one value for all nodes.
        given: attributes that say whether a node has an input, by its name here.
        only: integer attributes here that must have one value.
        divided: inputs here that it takes divided by another one.
    """

    name: str
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    attributes: Mapping[str, GeAttribute] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    only: Mapping[str, int] = field(default_factory=dict)
    divided: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Correspondence:
    """What an op corresponds to.

    Attributes:
        aclnn: the function of its name; None for a name of this package's own.
        operator: the operator of a graph that a parser plugin makes of a node; None if there is none.
        note: on the name of an op that is not aclnn's, or on the operator that is missing; a sentence.
        related: further operators of graphs, for which there are golden functions.
    """

    aclnn: Aclnn | None
    operator: GeOperator | None
    note: str = ""
    related: Sequence[str] = ()


NO_DOUBLE = "double (float64)."
MIXED = "Inputs of different dtypes."
RANK_0 = "Scalars (rank 0)."
REDUCTION = GeAttribute("String", "reduction")
COMPOSED = "aclnn composes it of several operators, so a node has no single operator of a graph."


def _same(*names: str) -> dict[str, str]:
    return {name: name for name in names}


NO_INDICES = {
    **dict.fromkeys(("prefixOptional", "qStartIdxOptional", "kvStartIdxOptional"), "no such input"),
    "scaleValueOptional": "scale_value",
    "keepProbOptional": "keep_prob",
    **dict.fromkeys(("preTokensOptional", "nextTokensOptional", "headNum"), "no such attribute"),
    "inputLayout": "input_layout",
    "innerPreciseOptional": "no such attribute",
    "sparseModeOptional": "sparse_mode",
    "pseTypeOptional": "pse_type",
}
STATISTICS_REPEATED = (
    "softmaxMax and softmaxSum have a last axis of eight equal numbers in aclnn.",
    "dropMask has eight elements in a byte in aclnn, here bool.",
)
NOT_WRITTEN = (
    "The mask of dropout and the statistics have another layout there, so a node has no single operator of a graph."
)
POOL = {
    "ksize": GeAttribute("ListInt", "kernel_size"),
    "strides": GeAttribute("ListInt", "stride", "kernel_size"),
    "pads": GeAttribute("ListInt", "padding", (0, 0)),
    "dilation": GeAttribute("ListInt", "dilation", (1, 1)),
    "ceil_mode": GeAttribute("Bool", "ceil_mode"),
}
POOL_CONSTANTS: Mapping[str, Constant] = {"dtype": 9, "data_format": "NCHW"}
"""dtype: ge::DT_INT64, that of the indices."""
POOL_ARGUMENTS = {
    "kernelSize": "kernel_size",
    "stride": "stride",
    "padding": "padding",
    "dilation": "dilation",
    "ceilMode": "ceil_mode",
}
POOL_REFUSED = (
    NO_DOUBLE,
    "Pooling over one or three spatial axes.",
    "NaN and minus infinity in `self`, on the devices whose documents exclude them.",
)

CORRESPONDENCES: Mapping[str, Correspondence] = {
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
                **_same("var", "m", "v", "beta1_power", "beta2_power", "lr", "weight_decay", "beta1", "beta2"),
                **_same("epsilon", "grad", "max_grad_norm"),
            },
            {"var": "var_out", "m": "m_out", "v": "v_out"},
            {"maximize": GeAttribute("Bool", "maximize")},
            given={"amsgrad": "max_grad_norm"},
            divided={"beta1_power": "beta1", "beta2_power": "beta2"},
        ),
    ),
    "BatchNormElemt": Correspondence(
        Aclnn(
            "BatchNormElemt",
            {**_same("input", "weight", "bias", "mean", "invstd", "eps"), "output": "out"},
            refused=(NO_DOUBLE, MIXED),
        ),
        None,
        COMPOSED,
    ),
    "BatchNormElemtBackward": Correspondence(
        Aclnn(
            "BatchNormElemtBackward",
            {
                "gradOut": "grad_out",
                "input": "input",
                "mean": "mean",
                "invstd": "invstd",
                "weight": "weight",
                "sumDy": "sum_dy",
                "sumDyXmu": "sum_dy_xmu",
                "counter": "counter",
                "gradInput": "grad_input",
            },
            differences=(
                "The documents describe sumDy and sumDyXmu as means, but the formula and the implementation divide both"
                " by the sum of `counter`, as here: they are sums. The operator of graphs, SyncBatchNormBackwardElemt,"
                " takes the means (mean_dy, mean_dy_xmu) and no counter.",
                "In earlier documents a parenthesis of the formula is misplaced, so that only the second term would be"
                " multiplied by `invstd` and `weight`.",
            ),
            refused=(NO_DOUBLE, "A `counter` of rank 0, or of bfloat16."),
        ),
        None,
        "The operator of graphs, SyncBatchNormBackwardElemt, takes inputs of the shape of `input`, to which a"
        " parser cannot expand a vector, as it does not know the rank.",
        ("SyncBatchNormBackwardElemt",),
    ),
    "BatchNormGatherStatsWithCounts": Correspondence(
        Aclnn(
            "BatchNormGatherStatsWithCounts",
            {
                "input": "input",
                "mean": "mean",
                "invstd": "invstd",
                "runningMean": "running_mean, running_mean_out",
                "runningVar": "running_var, running_var_out",
                "momentum": "momentum",
                "eps": "eps",
                "counts": "counts",
                "meanAll": "mean_all",
                "invstdAll": "invstd_all",
            },
            differences=("aclnn updates runningMean and runningVar in place; a node has outputs for the new values.",),
            refused=(NO_DOUBLE,),
        ),
        None,
        COMPOSED,
        ("SyncBatchNormGatherStats",),
    ),
    "BatchNormReduceBackward": Correspondence(
        Aclnn(
            "BatchNormReduceBackward",
            {
                "gradOut": "grad_out",
                **_same("input", "mean", "invstd", "weight"),
                "inputG": "given with the outputs `sum_dy` and `sum_dy_xmu`",
                "weightG": "given with the output `grad_weight`",
                "biasG": "given with the output `grad_bias`",
                "sumDy": "sum_dy",
                "sumDyXmu": "sum_dy_xmu",
                "gradWeight": "grad_weight",
                "gradBias": "grad_bias",
            },
            refused=(NO_DOUBLE, MIXED),
        ),
        None,
        "The operator of graphs, SyncBatchNormBackwardReduce, takes sums over the elements of each channel, whose axes"
        " a parser does not know.",
        ("SyncBatchNormBackwardReduce",),
    ),
    "BatchNormStats": Correspondence(
        Aclnn("BatchNormStats", _same("input", "eps", "mean", "invstd"), refused=(NO_DOUBLE,)), None, COMPOSED
    ),
    "BinaryCrossEntropyWithLogits": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogits",
            {
                **_same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                **_same("reduction", "out"),
            },
            differences=("With a reduction aclnn's out has shape (1,), here ().",),
            refused=(NO_DOUBLE, MIXED, RANK_0),
        ),
        GeOperator(
            "SigmoidCrossEntropyWithLogitsV2",
            {"predict": "self", **_same("target", "weight", "pos_weight")},
            {"loss": "out"},
            {"reduction": REDUCTION},
        ),
    ),
    "BinaryCrossEntropyWithLogitsBackward": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogitsBackward",
            {
                "gradOutput": "grad_output",
                **_same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                **_same("reduction", "out"),
            },
            refused=(NO_DOUBLE, MIXED, RANK_0, "A `target` outside [0, 1], which the documents exclude."),
        ),
        GeOperator(
            "SigmoidCrossEntropyWithLogitsGradV2",
            {"predict": "self", "target": "target", "dout": "grad_output", **_same("weight", "pos_weight")},
            {"gradient": "out"},
            {"reduction": REDUCTION},
        ),
    ),
    "BinaryCrossEntropyWithLogitsTargetBackward": Correspondence(
        Aclnn(
            "BinaryCrossEntropyWithLogitsTargetBackward",
            {
                "gradOutput": "grad_output",
                **_same("self", "target"),
                "weightOptional": "weight",
                "posWeightOptional": "pos_weight",
                "reduction": "reduction",
                "gradTarget": "grad_target",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        None,
        COMPOSED,
    ),
    "Convolution": Correspondence(
        Aclnn(
            "Convolution",
            {
                **_same("input", "weight"),
                "bias": "none: add it to the output",
                **_same("stride", "padding", "dilation"),
                "transposed": "none: false",
                "outputPadding": "none: for transposed convolutions only",
                "groups": "groups",
                "output": "output",
                "cubeMathType": "none: products are exact, and summed in float or double",
            },
            refused=(NO_DOUBLE,),
            missing=("Transposed convolutions, and a bias; ONNX's ConvTranspose and Conv have them.",),
        ),
        None,
        "ATC has parsers for ONNX's Conv, which computes the same.",
    ),
    "ConvolutionBackward": Correspondence(
        Aclnn(
            "ConvolutionBackward",
            {
                "gradOutput": "grad_output",
                **_same("input", "weight"),
                "biasSizes": "none: `grad_bias` has one element per channel",
                **_same("stride", "padding", "dilation"),
                "transposed": "none: false",
                "outputPadding": "none: for transposed convolutions only",
                "groups": "groups",
                "outputMask": "given with the outputs that a node names",
                "cubeMathType": "none: products are exact, and summed in float or double",
                "gradInput": "grad_input",
                "gradWeight": "grad_weight",
                "gradBias": "grad_bias",
            },
            refused=(NO_DOUBLE,),
            missing=("Gradients of transposed convolutions.",),
        ),
        None,
        COMPOSED,
    ),
    "CtcLoss": Correspondence(
        Aclnn(
            "CtcLoss",
            {
                "logProbs": "log_probs",
                "targets": "targets",
                "inputLengths": "input_lengths",
                "targetLengths": "target_lengths",
                "blank": "blank",
                "zeroInfinity": "zero_infinity",
                "negLogLikelihoodOut": "neg_log_likelihood",
                "logAlphaOut": "log_alpha",
            },
            differences=(
                "aclnn takes the lengths as arrays of the host, a node as tensors.",
                "The output `loss` is this package's own: `neg_log_likelihood` with infinities set to 0 by"
                " `zero_infinity`.",
                "The attribute `stash_type` is this package's own; with 0 the outputs have the dtypes of aclnn.",
            ),
            refused=(
                "Targets without labels, labels equal to `blank`, and targets longer than their inputs, for which the"
                " documents promise no results.",
            ),
            missing=("`log_probs` without a batch, (T, C): give it an axis of size 1.",),
        ),
        GeOperator(
            "CTCLossV2",
            _same("log_probs", "targets", "input_lengths", "target_lengths"),
            _same("neg_log_likelihood", "log_alpha"),
            {"blank": GeAttribute("Int", "blank"), "zero_infinity": GeAttribute("Bool", "zero_infinity")},
            {"reduction": "none"},
            only={"stash_type": 0},
        ),
        related=("CTCLossV3",),
    ),
    "CtcLossBackward": Correspondence(
        Aclnn(
            "CtcLossBackward",
            {
                "gradOut": "grad_out",
                "logProbs": "log_probs",
                "targets": "targets",
                "inputLengths": "input_lengths",
                "targetLengths": "target_lengths",
                "negLogLikelihood": "neg_log_likelihood",
                "logAlpha": "log_alpha",
                "blank": "blank",
                "zeroInfinity": "zero_infinity",
                "out": "out",
            },
            differences=(
                "aclnn takes the lengths as arrays of the host, a node as tensors.",
                "The attribute `through_log_softmax` is this package's own; 1, the default, is aclnn's gradient.",
            ),
            refused=(
                "`neg_log_likelihood` and `log_alpha` of a wider dtype than `log_probs`, which long sequences need.",
                "`targets` of bool, float or float16.",
            ),
        ),
        GeOperator(
            "CTCLossV2Grad",
            {
                **_same("grad_out", "log_probs", "targets", "input_lengths", "target_lengths"),
                **_same("neg_log_likelihood", "log_alpha"),
            },
            {"grad": "out"},
            {"blank": GeAttribute("Int", "blank"), "zero_infinity": GeAttribute("Bool", "zero_infinity")},
            {"reduction": "none"},
            only={"through_log_softmax": 1},
        ),
        related=("CTCLossV3Grad",),
    ),
    "DepthwiseConv2DBackpropFilter": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs,"
        " DepthwiseConv2DBackpropFilterD, whose filters have another layout. aclnnConvolutionBackward computes the same"
        " with as many groups as channels.",
    ),
    "DepthwiseConv2DBackpropInput": Correspondence(
        None,
        None,
        "CANN's list of aclnn functions does not have this name: it is that of an operator of graphs,"
        " DepthwiseConv2DBackpropInputD, whose filters have another layout. aclnnConvolutionBackward computes the same"
        " with as many groups as channels.",
    ),
    "DropoutBackward": Correspondence(
        Aclnn(
            "DropoutBackward",
            {"gradOutput": "grad_output", "mask": "mask", "scale": "scale", "out": "grad_input"},
            differences=("aclnn's mask has one bit for each element, in uint8; here `mask` is a tensor of bool.",),
            refused=(NO_DOUBLE,),
        ),
        None,
        "The masks differ.",
    ),
    "DropoutV3": Correspondence(
        Aclnn(
            "DropoutV3",
            {
                "input": "input",
                "optionalNoiseShape": "none: each element has a random number of its own",
                **_same("p", "seed", "offset"),
                "out": "output",
                "maskOut": "mask",
            },
            differences=(
                "aclnn's maskOut has one bit for each element, in uint8; here `mask` is a tensor of bool.",
                "The random numbers differ: a mask of a device is not reproduced.",
            ),
            refused=(NO_DOUBLE,),
        ),
        None,
        "The masks differ.",
    ),
    "EmbeddingDenseBackward": Correspondence(
        Aclnn(
            "EmbeddingDenseBackward",
            {
                **_same("grad", "indices"),
                "numWeights": "num_weights",
                "paddingIdx": "padding_idx",
                "scaleGradByFreq": "scale_grad_by_freq",
                "out": "out",
            },
            differences=("aclnn's sums depend on the order of the additions unless determinism is switched on.",),
            refused=(NO_DOUBLE,),
            missing=("`indices` of other dtypes than int32 and int64.",),
        ),
        GeOperator(
            "EmbeddingDenseGrad",
            _same("grad", "indices"),
            {"y": "out"},
            {
                "num_weights": GeAttribute("Int", "num_weights"),
                "padding_idx": GeAttribute("Int", "padding_idx"),
                "scale_grad_by_freq": GeAttribute("Bool", "scale_grad_by_freq"),
            },
        ),
        "EmbeddingDenseGradV2 takes indices that are sorted already, which a node does not have.",
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
                **_same("momentum", "lr", "dampening", "nesterov", "maximize"),
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
    "GeluBackwardV2": Correspondence(
        Aclnn(
            "GeluBackwardV2",
            {"gradOutput": "grad_output", "self": "self", "approximate": "approximate", "gradInput": "grad_input"},
            differences=('aclnn takes approximate as a text, "none" or "tanh"; a node as 0 or 1.',),
            refused=(NO_DOUBLE,),
        ),
        GeOperator(
            "GeluGradV2",
            {"dy": "grad_output", "x": "self"},
            {"z": "grad_input"},
            {"approximate": GeAttribute("String", "approximate")},
        ),
    ),
    "FlashAttentionScore": Correspondence(
        Aclnn(
            "FlashAttentionScoreV2",
            {
                **_same("query", "key", "value"),
                "realShiftOptional": "real_shift",
                "dropMaskOptional": "drop_mask",
                "paddingMaskOptional": "no such input",
                "attenMaskOptional": "atten_mask",
                **NO_INDICES,
                "softmaxMaxOut": "softmax_max",
                "softmaxSumOut": "softmax_sum",
                "softmaxOutOut": "no such output",
                "attentionOutOut": "attention_out",
            },
            differences=STATISTICS_REPEATED,
            refused=(NO_DOUBLE,),
        ),
        None,
        NOT_WRITTEN,
    ),
    "FlashAttentionScoreGrad": Correspondence(
        Aclnn(
            "FlashAttentionScoreGradV2",
            {
                "query": "query",
                "keyIn": "key_in",
                "value": "value",
                "dy": "dy",
                "pseShiftOptional": "pse_shift",
                "dropMaskOptional": "drop_mask",
                "paddingMaskOptional": "no such input",
                "attenMaskOptional": "atten_mask",
                "softmaxMaxOptional": "softmax_max",
                "softmaxSumOptional": "softmax_sum",
                "softmaxInOptional": "no such input",
                "attentionInOptional": "attention_in",
                **NO_INDICES,
                "dqOut": "dq",
                "dkOut": "dk",
                "dvOut": "dv",
                "dpseOut": "no such output",
            },
            differences=STATISTICS_REPEATED,
            refused=(NO_DOUBLE,),
        ),
        None,
        NOT_WRITTEN,
    ),
    "Hardshrink": Correspondence(
        Aclnn("Hardshrink", _same("self", "lambd", "out"), refused=(NO_DOUBLE,)),
        GeOperator("HardShrink", {"input_x": "self"}, {"output_y": "out"}, {"lambd": GeAttribute("Float", "lambd")}),
    ),
    "HardshrinkBackward": Correspondence(
        Aclnn(
            "HardshrinkBackward",
            {"gradOutput": "grad_output", "self": "self", "lambd": "lambd", "gradInput": "grad_input"},
            refused=(NO_DOUBLE, MIXED),
        ),
        GeOperator(
            "HardShrinkGrad",
            {"gradients": "grad_output", "features": "self"},
            {"backprops": "grad_input"},
            {"lambd": GeAttribute("Float", "lambd")},
        ),
    ),
    "KlDiv": Correspondence(
        Aclnn(
            "KlDiv",
            {**_same("self", "target", "reduction"), "logTarget": "log_target", "out": "out"},
            refused=(NO_DOUBLE, RANK_0),
        ),
        None,
        COMPOSED,
    ),
    "KlDivBackward": Correspondence(
        Aclnn(
            "KlDivBackward",
            {
                "gradOutput": "grad_output",
                **_same("self", "target", "reduction"),
                "logTarget": "log_target",
                "out": "out",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        GeOperator(
            "KlDivLossGrad",
            {"grad": "grad_output", "input": "self", "target": "target"},
            {"y": "out"},
            {"reduction": REDUCTION, "log_target": GeAttribute("Bool", "log_target")},
        ),
    ),
    "KlDivTargetBackward": Correspondence(
        Aclnn(
            "KlDivTargetBackward",
            {
                "gradOutput": "grad_output",
                **_same("self", "target", "reduction"),
                "logTarget": "log_target",
                "gradTarget": "grad_target",
            },
            refused=(NO_DOUBLE, RANK_0),
        ),
        GeOperator(
            "KlDivTargetLossGrad",
            {"grad": "grad_output", "input": "self", "target": "target"},
            {"y": "grad_target"},
            {"reduction": REDUCTION, "log_target": GeAttribute("Bool", "log_target")},
        ),
    ),
    "MaxPool2dWithIndices": Correspondence(
        Aclnn(
            "MaxPool2dWithIndices",
            {"self": "self", **POOL_ARGUMENTS, **_same("out", "indices")},
            differences=("aclnn's indices are int32 or int64, here int64.",),
            refused=POOL_REFUSED,
        ),
        GeOperator("MaxPoolWithArgmaxV3", {"x": "self"}, {"y": "out", "argmax": "indices"}, POOL, POOL_CONSTANTS),
    ),
    "MaxPool2dWithIndicesBackward": Correspondence(
        Aclnn(
            "MaxPool2dWithIndicesBackward",
            {"gradOutput": "grad_output", **_same("self", "indices"), **POOL_ARGUMENTS, "gradInput": "out"},
            differences=("aclnn's sums depend on the order of the additions unless determinism is switched on.",),
            refused=(
                *POOL_REFUSED,
                "Indices into the whole tensor, as of ONNX's MaxPool; a call without `kernel_size`.",
            ),
        ),
        GeOperator(
            "MaxPoolGradWithArgmaxV3",
            {"x": "self", "grad": "grad_output", "argmax": "indices"},
            {"y": "out"},
            POOL,
            POOL_CONSTANTS,
        ),
    ),
    "ThnnFusedLstmCell": Correspondence(
        Aclnn(
            "ThnnFusedLstmCell",
            {
                "inputGates": "input_gates",
                "hiddenGates": "hidden_gates",
                "cx": "cx",
                "inputBiasOptional": "none: add it to `input_gates`",
                "hiddenBiasOptional": "none: add it to `hidden_gates`",
                "hyOut": "hy",
                "cyOut": "cy",
                "storageOut": "storage",
            },
            refused=(NO_DOUBLE, "bfloat16.", MIXED),
            missing=("The biases.",),
        ),
        None,
        "The operator of graphs, ThnnFusedLstmCell, requires biases.",
        ("ThnnFusedLstmCell",),
    ),
    "ThnnFusedLstmCellBackward": Correspondence(
        Aclnn(
            "ThnnFusedLstmCellBackward",
            {
                "gradHyOptional": "grad_hy",
                "gradCOptional": "grad_cy",
                **_same("cx", "cy", "storage"),
                "hasBias": "none: false",
                "gradGatesOut": "grad_gates",
                "gradCxOut": "grad_cx",
                "gradBiasOut": "none: the sum of `grad_gates` over the batch",
            },
            refused=(NO_DOUBLE, "bfloat16.", MIXED, "Infinities, which give NaN in aclnn."),
        ),
        GeOperator(
            "ThnnFusedLstmCellGrad",
            {"dhy": "grad_hy", "dc": "grad_cy", **_same("cx", "cy", "storage")},
            {"dgates": "grad_gates", "dc_prev": "grad_cx"},
            constants={"has_bias": False},
        ),
    ),
    "ThresholdBackward": Correspondence(
        Aclnn(
            "ThresholdBackward",
            {"gradOutput": "grad_output", "self": "self", "threshold": "threshold", "out": "grad_input"},
            refused=(NO_DOUBLE,),
            missing=("Integers.",),
        ),
        GeOperator(
            "ThresholdGradV2D",
            {"gradients": "grad_output", "features": "self"},
            {"backprops": "grad_input"},
            {"threshold": GeAttribute("Float", "threshold", default=1.0)},
        ),
    ),
}
"""By op; an op that is not in it has a name of this package's own."""

OWN = Correspondence(None, None, "CANN's list of aclnn functions does not have this name: it is this package's own.")


def correspondence(op_type: str) -> Correspondence:
    """What an op corresponds to."""
    return CORRESPONDENCES.get(op_type, OWN)
