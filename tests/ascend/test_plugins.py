"""`onnx-ops plugin`: parser plugins for ATC, compiled against stubs of CANN's headers, which keep registrations."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from onnx_ops.ascend.correspondence import CORRESPONDENCES
from onnx_ops.ascend.plugins import has_plugin, plugin_source
from onnx_ops.cli.app import app
from onnx_ops.ops import OPS

ATC = Path(__file__).parent / "atc"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A program that parses nodes with the plugins of all ops."""
    if COMPILER is None:
        pytest.skip("there is no C++ compiler")
    folder = tmp_path_factory.mktemp("plugin")
    (folder / "plugin.cpp").write_text(plugin_source(op for op in OPS.values() if has_plugin(op)))
    program = folder / "parse"
    own = ["-std=c++17", "-Wall", "-Wextra", "-Werror", f"-I{ATC / 'include'}", f'-DPLUGIN="{folder / "plugin.cpp"}"']
    command = [COMPILER, *own, str(ATC / "parse.cpp"), "-o", str(program)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return program


ADAM = (
    "var=Data(index=0) m=Data(index=1) v=Data(index=2) beta1_power=DivNoNan(x1=Data(index=3) x2=Data(index=7))"
    " beta2_power=DivNoNan(x1=Data(index=4) x2=Data(index=8)) lr=Data(index=5) weight_decay=Data(index=6)"
    " beta1=Data(index=7) beta2=Data(index=8) epsilon=Data(index=9) grad=Data(index=10)"
)
PARSED = {
    "HardshrinkBackward g x | y |": "HardShrinkGrad(lambd=0.5f)",
    "HardshrinkBackward g x | y | lambd:f=0.25": "HardShrinkGrad(lambd=0.25f)",
    "Hardshrink x | y |": "HardShrink(lambd=0.5f)",
    "ThresholdBackward g x | y | threshold:f=-1.5": "ThresholdGradV2D(threshold=-1.5f)",
    "HardtanhBackward g x | y |": "HardtanhGrad(result=Data(index=1) grad=Data(index=0) max_val=1f min_val=-1f)",
    "HardtanhBackward g x | y | min:f=0 max:f=6": (
        "HardtanhGrad(result=Data(index=1) grad=Data(index=0) max_val=6f min_val=0f)"
    ),
    "HardsigmoidBackward g x | y |": "HardSigmoidGrad()",
    "HardswishBackwardV2 g x | y |": "HardSwishGradV2()",
    "InplaceLog x | y |": "Log()",
    "Lgamma x | y |": "Lgamma()",
    "Sort x | v i | dim:i=1 descending:i=1": "Sort(axis=1 descending=true)",
    "Digamma x | y |": "Digamma()",
    "InplaceSin x | y |": "Sin()",
    "InplaceCos x | y |": "Cos()",
    "Silu x | y |": "Swish()",
    "SiluBackward g x | y |": "SiluGrad()",
    "SoftplusV2 x | y |": "SoftplusV2(beta=1f threshold=20f)",
    "SoftplusBackward g x | y | beta:f=-1": "SoftplusV2Grad(beta=-1f threshold=20f)",
    "SWhere c x y | z |": "SelectV2()",
    "ScatterMax x i y | z |": "ScatterMax()",
    "GridSampler2D x g | y |": (
        'GridSampler2D(align_corners=false interpolation_mode="bilinear" padding_mode="zeros")'
    ),
    "GridSampler2DBackward d x g | y z | interpolation_mode:i=2 align_corners:i=1": (
        'GridSampler2DGrad(align_corners=true interpolation_mode="bicubic" padding_mode="zeros")'
    ),
    "GridSampler3D x g | y | padding_mode:i=2": (
        'GridSampler3D(align_corners=false interpolation_mode="bilinear" padding_mode="reflection")'
    ),
    "GridSampler3D x g | y | interpolation_mode:i=2": "FAILED",
    "GridSampler3DBackward d x g | y z | interpolation_mode:i=1": (
        'GridSampler3DGrad(align_corners=false interpolation_mode="nearest" padding_mode="zeros")'
    ),
    "RmsNorm x g | y r |": "RmsNorm(epsilon=1e-06f)",
    "RmsNorm x g | y | epsilon:f=0.25": "RmsNorm(epsilon=0.25f)",
    "RmsNormGrad d x r g | y z |": "RmsNormGrad()",
    "RotaryPositionEmbedding x c s | y | mode:i=3": "RotaryPositionEmbedding(mode=3)",
    "RotaryPositionEmbedding x c s | y | mode:i=4": "FAILED",
    "RotaryPositionEmbeddingGrad d c s | y |": "RotaryPositionEmbeddingGrad(mode=0)",
    "RotaryPositionEmbeddingGrad d c s x | y z w | mode:i=1": "RotaryPositionEmbeddingGrad(mode=1)",
    "GeluBackwardV2 g x | y |": 'GeluGradV2(approximate="none")',
    "GeluBackwardV2 g x | y | approximate:i=1": 'GeluGradV2(approximate="tanh")',
    "GeluBackwardV2 g x | y | approximate:i=2": "FAILED",
    "KlDivBackward g x y | d |": 'KlDivLossGrad(log_target=false reduction="mean")',
    "KlDivBackward g x y | d | reduction:i=3 log_target:i=1": 'KlDivLossGrad(log_target=true reduction="batchmean")',
    "KlDivTargetBackward g x y | d | reduction:i=0": 'KlDivTargetLossGrad(log_target=false reduction="none")',
    "BinaryCrossEntropyWithLogits x y | d | reduction:i=2": 'SigmoidCrossEntropyWithLogitsV2(reduction="sum")',
    "BinaryCrossEntropyWithLogits x y - p | d | reduction:i=4": "FAILED",
    "BinaryCrossEntropyWithLogitsBackward g x y | d |": (
        "SigmoidCrossEntropyWithLogitsGradV2(predict=Data(index=1) target=Data(index=2) dout=Data(index=0)"
        ' reduction="mean")'
    ),
    "BinaryCrossEntropyWithLogitsBackward g x y w p | d |": (
        "SigmoidCrossEntropyWithLogitsGradV2(predict=Data(index=1) target=Data(index=2) dout=Data(index=0)"
        ' weight=Data(index=3) pos_weight=Data(index=4) reduction="mean")'
    ),
    "BinaryCrossEntropyWithLogitsBackward g x y - p | d |": "FAILED",
    "CtcLoss p t i l | n a |": 'CTCLossV2(blank=0 reduction="none" zero_infinity=false)',
    "CtcLoss p t i l | n a - |": 'CTCLossV2(blank=0 reduction="none" zero_infinity=false)',
    "CtcLoss p t i l | n a loss |": "FAILED",
    "CtcLoss p t i l | n a | stash_type:i=11": "FAILED",
    "CtcLossBackward g p t i l n a | o | blank:i=3 zero_infinity:i=1": (
        'CTCLossV2Grad(blank=3 reduction="none" zero_infinity=true)'
    ),
    "CtcLossBackward g p t i l n a | o | through_log_softmax:i=0": "FAILED",
    "EmbeddingDenseBackward g i | o | num_weights:i=7": (
        "EmbeddingDenseGrad(num_weights=7 padding_idx=-1 scale_grad_by_freq=false)"
    ),
    "ApplyAdamW v m u b c l w d e f g | x y z |": f"ApplyAdamW({ADAM} amsgrad=false maximize=false)",
    "ApplyAdamW v m u b c l w d e f g n | x y z | maximize:i=1": (
        f"ApplyAdamW({ADAM} max_grad_norm=Data(index=11) amsgrad=true maximize=true)"
    ),
    "ApplyAdamW v m u b c l w d e f g n | x y z a |": "FAILED",
    "MaxPool2dWithIndices x | y i | kernel_size:ints=2,3": (
        'MaxPoolWithArgmaxV3(ceil_mode=false data_format="NCHW" dilation=[1,1] dtype=9 ksize=[2,3] pads=[0,0]'
        " strides=[2,3])"
    ),
    "MaxPool2dWithIndices x | y i | kernel_size:ints=2": "FAILED",
    "MaxPool2dWithIndicesBackward g x i | y | kernel_size:ints=2,3 stride:ints=1,2 padding:ints=1,1 ceil_mode:i=1": (
        "MaxPoolGradWithArgmaxV3(x=Data(index=1) grad=Data(index=0) argmax=Data(index=2) ceil_mode=true"
        ' data_format="NCHW" dilation=[1,1] dtype=9 ksize=[2,3] pads=[1,1] strides=[1,2])'
    ),
    "ThnnFusedLstmCellBackward h c x y s | g d |": "ThnnFusedLstmCellGrad(has_bias=false)",
    "ThnnFusedLstmCellBackward - c x y s | g d |": "FAILED",
    "Convolution x w | y |": "UNKNOWN",
}


def test_nodes_are_parsed(parser: Path) -> None:
    lines = "".join(f"aclnn::1::{line}\n" for line in PARSED)
    result = subprocess.run([parser], input=lines, capture_output=True, text=True, check=True)
    assert dict(zip(PARSED, result.stdout.splitlines(), strict=True)) == PARSED


def test_every_plugin_has_a_node_above() -> None:
    assert {op.name for op in OPS.values() if has_plugin(op)} == {line.split()[0] for line in PARSED} - {"Convolution"}


def test_command(tmp_path: Path) -> None:
    def invoke(*arguments: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["plugin", *arguments])
        return result.exit_code, result.output

    source = plugin_source([OPS["HardshrinkBackward"], OPS["KlDivBackward"]])
    assert invoke("hardshrinkbackward", "KlDivBackward") == (0, source)
    assert "has not been run on an NPU" in source
    path = tmp_path / "plugin.cpp"
    assert invoke("--out", str(path))[0] == 0
    assert path.read_text() == plugin_source(op for op in OPS.values() if has_plugin(op))
    code, message = invoke("DropoutV3")
    assert code == 1
    assert "DropoutV3: there is no parser plugin" in message


@pytest.mark.parametrize("name", sorted(CORRESPONDENCES))
def test_correspondence_names_what_the_op_has(name: str) -> None:
    """Every input, output and attribute here that is no own one has its argument, and no argument names another one."""
    op, known = OPS[name], CORRESPONDENCES[name]
    have = {*op.input_names, *op.output_names, *op.schema.attributes}
    if known.aclnn is not None:
        named = {part for text in known.aclnn.arguments.values() if " " not in text.replace(", ", ",")
                 for part in text.split(", ")}  # fmt: skip
        assert named <= have
        words = " ".join(known.aclnn.differences)
        assert {rest for rest in have - named if f"`{rest}`" not in words} == set()
    if known.operator is not None:
        operator = known.operator
        own = {*operator.inputs.values(), *operator.outputs.values(), *operator.only}
        own |= {attribute.source for attribute in operator.attributes.values()}
        assert own <= have
        assert tuple(operator.outputs.values()) == op.output_names[: len(operator.outputs)]
        assert have - own - set(op.output_names) == set()
