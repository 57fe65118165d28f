"""`onnx-ops cases`: rows in the format of CANN's tables, with kernels against golden functions."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from onnx_ops.ascend.cases import CaseTableError, run_cases, unknown_columns
from onnx_ops.ascend.golden import golden_source
from onnx_ops.cli.app import app
from onnx_ops.ops import OPS

COLUMNS = [
    *("testcase_name", "op_name", "input_shapes", "input_dtypes", "output_shapes", "output_dtypes", "attributes"),
    *("input_data_ranges", "precision_tolerances", "absolute_precision", "is_enabled", "soc_series"),
]


def row(name: str, kernel: str, shapes: Any, dtypes: Any, **others: Any) -> dict[str, str]:
    given = {"testcase_name": name, "op_name": kernel, "input_shapes": shapes, "input_dtypes": dtypes, **others}
    return {column: str(value) for column, value in given.items()}


ROWS = [
    row(
        "shrink",
        "hard_shrink_grad",
        ((3, 4), (3, 4)),
        ("float16", "float16"),
        output_shapes=((3, 4),),
        output_dtypes=("float16",),
        attributes={"lambd": 0.25},
        input_data_ranges=((-1, 1), (-0.5, 0.5)),
        precision_tolerances=((0.001, 0.001),),
        is_enabled="TRUE",
    ),
    row(
        "broadcast",
        "kl_div_loss_grad",
        [[1], [4, 1], [1, 5]],
        ["bfloat16", "bfloat16", "bfloat16"],
        output_shapes=[[4, 5]],
        attributes={"reduction": "mean", "log_target": True, "dynamic_shape": 1},
        input_data_ranges="(nan, inf, -0.0, 1, -1)",
        precision_tolerances="((0.004, 0.004))",
    ),
    row(
        "lengths",
        "ctc_loss_v2",
        ((6, 2, 5), (2, 3), (2,), (2,)),
        ("float32", "int32", "int32", "int32"),
        output_shapes=((2,), (2, 6, 5)),
        attributes={"reduction": "none", "input_lengths": (6, 5), "target_lengths": (2, 1)},
        input_data_ranges=((-3, -1), (1, 4), (0, 0), (0, 0)),
    ),
    row(
        "places",
        "max_pool_grad_with_argmax_v3",
        ((1, 6, 5, 2), (1, 3, 3, 2), (1, 3, 3, 2)),
        ("float", "float", "int32"),
        output_dtypes=("float32",),
        attributes={"ksize": [2, 2], "strides": [2, 2], "pads": [0, 1], "data_format": "NHWC"},
        input_data_ranges=((None, None), (0, 1), (-2147483648, -1)),
    ),
    row("optional", "sigmoid_cross_entropy_with_logits_v2", ((2, 3), (2, 3), None, (3,)), ("float32",) * 4),
    row("weights", "apply_adam_w", ((4,),) * 3 + ((1,),) * 7 + ((4,), None), ("float32",) * 12,
        input_data_ranges=((0, 1),) * 3 + ((0.1, 0.8),) * 7 + ((-1, 1), None)),
]  # fmt: skip
OTHERS = {
    "refused": row("refused", "gelu_grad_v2", ((2, 3), (2, 4)), ("float32", "float32")),
    "fail": row("of_shape", "hard_shrink", ((3,),), ("float32",), output_shapes=((4,),)),
    "skipped": row("another", "softsign_grad", ((3,), (3,)), ("float32", "float32")),
}
SKIPPED = {
    "no op corresponds to softsign_grad": OTHERS["skipped"],
    "not enabled": row("disabled", "hard_shrink", ((3,),), ("float32",), is_enabled="FALSE"),
    "needs files: manual_input_binaries": row(
        "files", "hard_shrink", ((3,),), ("float32",), manual_input_binaries="('x.bin',)"
    ),
    "there is a golden function only": row("sums", "sync_batch_norm_backward_reduce", ((3,),) * 4, ("float32",) * 4),
    "2 inputs, expected at most 1": row("two", "hard_shrink", ((3,), (3,)), ("float32", "float32")),
    "1 input_dtypes, 2 input_data_ranges, expected 2": row(
        "dtypes", "hard_shrink_grad", ((3,), (3,)), ("float32",), input_data_ranges=((0, 1), (0, 1))
    ),
    "column attributes is": row("literal", "hard_shrink", ((3,),), ("float32",), attributes="{'lambd': half}"),
    "dtype is 'float7'": row("dtype", "hard_shrink", ((3,),), ("float7",)),
    "more than 100 elements": row("large", "hard_shrink", ((101,),), ("float32",)),
}


def write(folder: Path, rows: list[dict[str, str]], *columns: str) -> Path:
    path = folder / "ttk_kernel_own.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*COLUMNS, "manual_input_binaries", *columns], restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_rows_pass(tmp_path: Path) -> None:
    found = list(run_cases(write(tmp_path, ROWS)))
    assert [(result.name, result.status, result.reason) for result in found] == [
        (row["testcase_name"], "pass", "") for row in ROWS
    ]
    assert [len(result.outputs) for result in found] == [1, 1, 2, 1, 1, 3]
    assert found[1].unknown == ("dynamic_shape",)
    assert found[1].outputs[0].dtype == "bfloat16"


def test_rows_that_do_not_pass(tmp_path: Path) -> None:
    found = {status: next(run_cases(write(tmp_path, [other]))) for status, other in OTHERS.items()}
    assert {status: result.status for status, result in found.items()} == {status: status for status in OTHERS}
    assert "GeluBackwardV2" in found["refused"].reason
    assert found["fail"].reason == "output 0: shape (3,), in the table (4,)"
    for reason, skipped in SKIPPED.items():
        (result,) = run_cases(write(tmp_path, [skipped]), most_elements=100)
        assert result.status == "skipped"
        assert reason in result.reason


def test_a_golden_file_is_compared_by_the_tolerances(tmp_path: Path) -> None:
    """A file whose results are off by a hundredth, in one element of twelve."""
    golden = tmp_path / "golden.py"
    golden.write_text(
        golden_source(OPS["HardshrinkBackward"])
        + "\n\nexact = hard_shrink_grad_golden\n\n\ndef hard_shrink_grad_golden(gradients, features, **kwargs):\n"
        "    assert kwargs['testcase_name'] == 'shrink'\n"
        "    result = exact(gradients, features, **kwargs)\n    result[0, 0] += 0.01\n    return result\n"
    )
    for tolerance, status in ((0.001, "fail"), (0.1, "pass")):
        own = {**ROWS[0], "precision_tolerances": f"((0.001, {tolerance}),)", "absolute_precision": "1e-8"}
        (result,) = run_cases(write(tmp_path, [own]), golden=golden)
        assert (result.status, result.outputs[0].outside) == (status, 1)
    (result,) = run_cases(write(tmp_path, [ROWS[1]]), golden=golden)
    assert "the golden file has no function for kl_div_loss_grad" in result.reason
    golden.write_text("raise ImportError('torch')")
    with pytest.raises(CaseTableError, match="has no golden functions: ImportError: torch"):
        list(run_cases(write(tmp_path, ROWS), golden=golden))


def test_tables_that_cannot_be_read(tmp_path: Path) -> None:
    assert unknown_columns(write(tmp_path, ROWS, "mood")) == ["mood"]
    path = tmp_path / "other.csv"
    path.write_text("testcase_name,op_name\n")
    with pytest.raises(CaseTableError, match="has no columns input_shapes, input_dtypes"):
        list(run_cases(path))


def test_inputs_are_the_same_each_time(tmp_path: Path) -> None:
    path = write(tmp_path, ROWS)
    first, second = ([result.outputs for result in run_cases(path)] for _ in range(2))
    assert repr(first) == repr(second)
    assert np.isfinite(first[0][0].cosine)


def test_command(tmp_path: Path) -> None:
    table = str(write(tmp_path, [*ROWS, *OTHERS.values()], "mood"))
    result = CliRunner().invoke(app, ["cases", table])
    assert result.exit_code == 1
    for text in (
        "of_shape: fail: output 0: shape (3,), in the table (4,)",
        "1 row skipped: no op corresponds to softsign_grad",
        "columns without effect: mood",
        "attributes without effect: dynamic_shape, reduction",
        "9 rows, 6 passed, 1 refused, 1 failed, 1 skipped.",
    ):
        assert text in " ".join(result.output.split()), result.output
    report = json.loads(CliRunner().invoke(app, ["cases", table, "--json"]).output)
    assert not report["ok"]
    assert [row["status"] for row in report["tables"][0]["rows"]] == ["pass"] * 6 + ["refused", "fail", "skipped"]
    assert CliRunner().invoke(app, ["cases", str(write(tmp_path, ROWS))]).exit_code == 0
