"""What fails with versions of other packages, and why; `conftest.py` expects it, and that it fails."""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass

import pytest
from packaging.requirements import Requirement


@dataclass(frozen=True)
class KnownFailure:
    """Tests that fail where a package has one of some versions.

    Attributes:
        versions: the package and these versions, such as "onnx<1.22".
        tests: a regular expression that is found in the tests' ids.
    """

    versions: str
    reason: str
    tests: str

    @property
    def applies(self) -> bool:
        wanted = Requirement(self.versions)
        installed = importlib.import_module(wanted.name).__version__
        return wanted.specifier.contains(installed, prereleases=True)


ON_ONNXRUNTIME = "(kernels|portable)(-unoptimized)?"
KNOWN_FAILURES = (
    KnownFailure(
        "onnx>=1.19",
        "GatherElements of onnx.reference takes at most 64 elements along an axis that is not the last",
        r"test_calls\[Sort-portable_evaluator\]",
    ),
    KnownFailure(
        "onnx<1.22",
        "onnx.reference hides the values around a Scan from its body",
        # But for two that the reference refuses before it comes to the Scan, as they expect.
        r"test_ctc_loss_backward.py::(?!test_one_number_for_the_whole_batch_is_an_error\[[34]-).*\bportable_evaluator\b"
        r"|(CtcLoss(Backward)?|DynamicRNN(Grad)?)-(.*-)?portable_evaluator|portable_evaluator-(CtcLoss|DynamicRNN)"
        r"|ctc_loss_backward-.*portable_evaluator"
        r"|test_ctc_twice_with_different_numbers_of_states\[plain-reference\]",
    ),
    KnownFailure(
        "onnx<1.23",
        "the checker does not tell which outputs a node leaves out",
        r"test_checker\[(BatchNormGatherStatsWithCounts|ApplyAdamW|FusedSgd|RotaryPositionEmbeddingGrad)\]",
    ),
    KnownFailure(
        "onnxruntime<1.27",
        "onnxruntime calls the last function of a name whatever the overload",
        rf"test_runs_everywhere\[function-overloads-{ON_ONNXRUNTIME}\]",
    ),
    KnownFailure(
        "onnxruntime<1.24",
        "ops with optional inputs infer no shapes, for onnxruntime would crash",
        r"test_names_of_dimensions_reach_the_outputs_of_the_session\[B",
    ),
    KnownFailure(
        "onnxruntime<1.24",
        "onnxruntime does not know opset 24",
        rf"test_runs_everywhere\[opset-24-ir-11-({ON_ONNXRUNTIME}|inlined|plain)\]",
    ),
    KnownFailure(
        "onnxruntime<1.24",
        "onnxruntime makes FusedMatMul of products of transposed float64 matrices, for which it has no kernel",
        r"test_pairs\[(ConvolutionBackward|FlashAttentionScore(Grad)?)-portable\]"
        r"|test_attention_in_float_and_in_double_with_statistics",
    ),
    KnownFailure(
        "onnxruntime<1.24",
        "onnxruntime's ReduceSum of no elements keeps the axis",
        r"test_calls\[SampledMatMul-portable(_unoptimised)?\]",
    ),
    KnownFailure(
        "onnx<1.23",
        "onnx.reference gathers a vector without elements for no indices, whatever the other axes",
        r"test_calls\[(SampledMatMul|GridSampler3DBackward)-portable_evaluator\]",
    ),
    KnownFailure(
        "numpy<2",
        "NumPy's products of matrices depend on the strides of these in the last bit",
        r"test_memory_layout_does_not_matter\[FlashAttentionScoreGrad-every_other-portable_evaluator\]",
    ),
    KnownFailure(
        "onnx<1.20",
        "onnx.reference has no ScatterND for indices with several axes",
        r"test_pairs\[SparseMatMul-portable_evaluator\]",
    ),
    KnownFailure(
        "onnxruntime<1.25",
        "onnxruntime does not know opset 26",
        rf"test_runs_everywhere\[opset-26-ir-13-({ON_ONNXRUNTIME}|inlined|plain)\]",
    ),
    KnownFailure(
        "onnx<1.20",
        "onnx does not know IR version 13",
        r"(test_linked_model_passes_the_checker|test_inlined_model_is_standard)\[opset-26-ir-13\]",
    ),
    KnownFailure(
        "onnx<1.22",
        "onnx writes out no nodes, and the pages are what newer versions write",
        r"test_an_op_added_as_contributing_says_has_a_page|test_pages_are_not_stale|test_stale_pages_are_named_and_put_right",
    ),
    KnownFailure("typer<0.26", "typer imports what Click 8.5 deprecates", r"test_cli.py::test_process"),
)


def expect_known_failures(items: list[pytest.Item]) -> None:
    """Mark what is known to fail here; a test that passes all the same fails, by `xfail_strict`."""
    for known in KNOWN_FAILURES:
        if not known.applies:
            continue
        for item in items:
            if re.search(known.tests, item.nodeid):
                item.add_marker(pytest.mark.xfail(reason=f"{known.versions}: {known.reason}"))
