"""The schemas in onnx.defs, type-and-shape inference on models that use them, and `make_node`."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import backends
import cases
import onnx
import pytest
from onnx import TensorProto, checker, helper, parser, shape_inference
from onnx.defs import OpSchema

import onnx_ops
from tests.ops import RECORDS
from tests.ops._shared.record import DType, Record, onnx_name

# --- the contract: names, order, types, defaults ---------------------------------------------------------------------

FLOATS = frozenset({"float16", "bfloat16", "float", "double"})
PRESENT = [record for name, record in RECORDS.items() if name in onnx_ops.OPS]
each_op = pytest.mark.parametrize("record", PRESENT, ids=str)


def schema_of(op_type: str) -> OpSchema:
    return onnx.defs.get_schema(op_type, 1, "aclnn")


def test_constants() -> None:
    assert onnx_ops.DOMAIN == "aclnn"
    assert onnx_ops.OPSET_VERSION == 1
    assert onnx_ops.opset_import() == helper.make_opsetid("aclnn", 1)
    assert [(r.name, int(r)) for r in onnx_ops.Reduction] == [("NONE", 0), ("MEAN", 1), ("SUM", 2), ("BATCHMEAN", 3)]
    assert {s.name: int(s) for s in onnx_ops.Status} == {
        "ACLNN_ERR_PARAM_NULLPTR": 161001,
        "ACLNN_ERR_PARAM_INVALID": 161002,
    }


def test_all_ops_are_registered() -> None:
    registered = {s.name for s in onnx.defs.get_all_schemas_with_history() if s.domain == "aclnn"}
    assert registered == set(onnx_ops.OPS)


def test_registered_by_import_alone() -> None:
    code = "import onnx, onnx_ops; print(onnx.defs.get_schema('HardshrinkBackward', 1, 'aclnn').since_version)"
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")


def types_of(dtypes: Iterable[DType]) -> set[str]:
    return {f"tensor({onnx_name(dtype)})" for dtype in dtypes}


@each_op
def test_inputs_by_name_order_and_option(record: Record) -> None:
    option = OpSchema.FormalParameterOption
    found = [(p.name, p.option) for p in schema_of(record.op).inputs]
    optional = {name: option.Optional if given.optional else option.Single for name, given in record.inputs.items()}
    assert found == list(optional.items())


@each_op
def test_outputs_by_name_order_and_option(record: Record) -> None:
    option = OpSchema.FormalParameterOption
    found = [(p.name, p.option) for p in schema_of(record.op).outputs]
    optional = {name: option.Optional if output.optional else option.Single for name, output in record.outputs.items()}
    assert found == list(optional.items())


@each_op
def test_input_dtypes(record: Record) -> None:
    schema = schema_of(record.op)
    for parameter, given in zip(schema.inputs, record.inputs.values(), strict=True):
        assert cases.allowed_types(schema, parameter) == types_of(given.dtypes), parameter.name


@each_op
def test_output_dtypes(record: Record) -> None:
    schema = schema_of(record.op)
    for parameter, output in zip(schema.outputs, record.outputs.values(), strict=True):
        assert cases.allowed_types(schema, parameter) == types_of(output.dtypes), parameter.name
        if output.like:
            (like,) = [p for p in schema.inputs if p.name == output.like]
            assert parameter.type_str == like.type_str


@each_op
def test_inputs_of_different_dtypes_have_type_variables_of_their_own(record: Record) -> None:
    """All mixtures are allowed, but where the record says that inputs share a variable."""
    for first, second in itertools.combinations(schema_of(record.op).inputs, 2):
        variables = [record.inputs[p.name].variable for p in (first, second)]
        assert (first.type_str == second.type_str) == (variables[0] == variables[1] != "")


@each_op
def test_attributes_with_types_and_defaults(record: Record) -> None:
    schema = schema_of(record.op)
    assert set(schema.attributes) == set(record.attributes)
    kinds = {float: OpSchema.AttrType.FLOAT, int: OpSchema.AttrType.INT, tuple: OpSchema.AttrType.INTS}
    for name, attribute in schema.attributes.items():
        wanted = record.attributes[name]
        assert attribute.type == kinds[type(wanted.default)]
        assert attribute.required == wanted.required
        if not attribute.required:
            found = helper.get_attribute_value(attribute.default_value)
            found = tuple(found) if isinstance(found, list) else found
            assert found == pytest.approx(wanted.default, rel=1e-7)  # of floats, which ONNX keeps in float32


@each_op
def test_documentation(record: Record) -> None:
    schema = schema_of(record.op)
    for part in ("Shapes:", "Dtypes:", "Edge rules:", "    ", *record.documented):
        assert part in schema.doc, part
    for described in (*schema.inputs, *schema.outputs, *schema.attributes.values()):
        assert described.description.strip().endswith("."), described.name
    for constraint in schema.type_constraints:
        assert constraint.description


@each_op
def test_one_version_that_is_neither_deprecated_nor_a_function(record: Record) -> None:
    schema = schema_of(record.op)
    assert (schema.since_version, schema.deprecated, schema.has_function) == (1, False, False)
    assert schema.has_type_and_shape_inference_function


@each_op
def test_dtypes_are_inferred(record: Record) -> None:
    """Each output has the dtype that the record says, and the shape that comes out."""
    for call in record.combinations():
        model = backends.model_of(replace(call, static=True))
        inferred = shape_inference.infer_shapes(model, check_type=True, strict_mode=True).graph
        expected = record.expected(call)
        for value in inferred.output:
            tensor = value.type.tensor_type
            assert TensorProto.DataType.Name(tensor.elem_type).lower() == onnx_name(
                record.output_dtype(call, value.name)
            )
            dims = [d.dim_value if d.HasField("dim_value") else None for d in tensor.shape.dim]
            assert len(dims) == expected[value.name].ndim
            known = [(d, n) for d, n in zip(dims, expected[value.name].shape, strict=True) if d is not None]
            assert all(d == n for d, n in known)


# --- inference -------------------------------------------------------------------------------------------------------

HARDSHRINK = "HardshrinkBackward (a, b)"
KL_DIV = "KlDivBackward (a, b, c)"
BCE = "BinaryCrossEntropyWithLogitsBackward (a, b, c, d, e)"
BATCH_NORM = "BatchNormElemtBackward (a, b, c, d, e, f, g, h)"
CTC = "CtcLossBackward (a, b, c, d, e, f, g)"


def graph_of(call: str, types: Sequence[str], after: str = "", attributes: str = "") -> onnx.ModelProto:
    """A model of one call, of inputs a, b, ... with the types; its output is out, of no type, or what `after` makes."""
    inputs = ", ".join(f"{t} {name}" for t, name in zip(types, "abcdefgh", strict=False))
    op, arguments = call.split(" ", 1)
    model = parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
        graph ({inputs}) => (float out) {{
            {"y" if after else "out"} = aclnn.{op} {attributes} {arguments}
            {after}
        }}"""
    )
    for value in model.graph.output:
        value.ClearField("type")
    for value, kind in zip(model.graph.input, types, strict=True):
        if kind.endswith("[]"):
            value.type.tensor_type.ClearField("shape")
    return model


def inferred(model: onnx.ModelProto) -> tuple[str, list[int | str | None] | None]:
    """dtype and shape of the output; a shape of None is an unknown rank."""
    graph = shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True).graph
    tensor = graph.output[0].type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]
    dims = [None if isinstance(d, str) and d.startswith("unk__") else d for d in dims]  # onnx makes up names
    return TensorProto.DataType.Name(tensor.elem_type).lower(), dims if tensor.HasField("shape") else None


LIKE_SELF = [
    ("static", ["float[2,3]"] * 3, ("float", [2, 3])),
    ("names", ["float[N,3]"] * 3, ("float", ["N", 3])),
    ("rank-0", ["float"] * 3, ("float", [])),
    ("empty", ["float[0,3]"] * 3, ("float", [0, 3])),
    ("rank-8", ["float[1,2,1,2,1,2,1,2]"] * 3, ("float", [1, 2, 1, 2, 1, 2, 1, 2])),
    ("unnamed", ["float[?,3]"] * 3, ("float", [None, 3])),
]
INFERRED: list[tuple[str, str, list[str], tuple[str, list[int | str | None] | None]]] = [
    *((f"kl-{n}", KL_DIV, t, o) for n, t, o in LIKE_SELF),
    ("kl-self-is-broadcast", KL_DIV, ["float[3]", "float[1,3]", "float[4,2,3]"], ("float", [1, 3])),
    ("kl-target-is-broadcast", KL_DIV, ["float", "float[4,2,3]", "float[3]"], ("float", [4, 2, 3])),
    ("kl-rank-of-self-unknown", KL_DIV, ["float[2,3]", "float[]", "float[2,3]"], ("float", None)),
    ("kl-rank-of-others-unknown", KL_DIV, ["float[]", "float[2,3]", "float[]"], ("float", [2, 3])),
    ("kl-mixed", KL_DIV, ["double[2]", "float16[2]", "bfloat16[2]"], ("float16", [2])),
    *((f"bce-{n}", BCE, [*t, "float", t[0]], o) for n, t, o in LIKE_SELF),
    ("bce-mixed", BCE, ["float[2]", "float[2]", "bfloat16[2]", "double[1]", "float16"], ("bfloat16", [2])),
    (
        "bce-without-weights",
        "BinaryCrossEntropyWithLogitsBackward (a, b, c)",
        ["double[1]", "float[4,N]", "float16[4,N]"],
        ("float16", [4, "N"]),
    ),
    (
        "bce-without-weight",
        "BinaryCrossEntropyWithLogitsBackward (a, b, c, , d)",
        ["float"] * 3 + ["float"],
        ("float", []),
    ),
    ("hardshrink-broadcast", HARDSHRINK, ["float[4,1,3]", "float[2,1]"], ("float", [4, 2, 3])),
    ("hardshrink-names", HARDSHRINK, ["float[N,3]", "float[N,1]"], ("float", ["N", 3])),
    ("hardshrink-name-and-one", HARDSHRINK, ["float[N,1]", "float[M]"], ("float", ["N", "M"])),
    ("hardshrink-name-and-number", HARDSHRINK, ["float[N]", "float[5]"], ("float", [5])),
    ("hardshrink-two-names", HARDSHRINK, ["float[N,2]", "float[M,2]"], ("float", [None, 2])),
    ("hardshrink-unnamed", HARDSHRINK, ["float[?,2]", "float[?,2]"], ("float", [None, 2])),
    ("hardshrink-rank-unknown", HARDSHRINK, ["float[]", "float[2]"], ("float", None)),
    ("hardshrink-empty", HARDSHRINK, ["float[0]", "float[1]"], ("float", [0])),
    ("hardshrink-rank-8", HARDSHRINK, ["float", "float[1,2,1,2,1,2,1,2]"], ("float", [1, 2] * 4)),
    *(
        (
            f"hardshrink-{a}-{b}",
            HARDSHRINK,
            [f"{a}[2]", f"{b}[2]"],
            (a if a == b else "double" if "double" in (a, b) else "float", [2]),
        )
        for a, b in itertools.product(sorted(FLOATS), repeat=2)
    ),
    ("batch-norm", BATCH_NORM, ["float[2,3,4]"] * 2 + ["float[3]"] * 5 + ["int32[2]"], ("float", [2, 3, 4])),
    ("batch-norm-names", BATCH_NORM, ["float[N,C]"] * 2 + ["float[C]"] * 5 + ["float[W]"], ("float", ["N", "C"])),
    ("batch-norm-rank-unknown", BATCH_NORM, ["float[]"] * 7 + ["int32[]"], ("float", None)),
    (
        "batch-norm-mixed",
        BATCH_NORM,
        ["float[2,3]", "float16[2,3]"] + ["float[3]", "double[3]"] * 2 + ["float[3]"] + ["int32"],
        ("float16", [2, 3]),
    ),
    (
        "batch-norm-without-weight",
        "BatchNormElemtBackward (a, b, c, d, , e, f, g)",
        ["bfloat16[2,3]"] * 2 + ["float[3]"] * 4 + ["bfloat16[1,1,2]"],
        ("bfloat16", [2, 3]),
    ),
    (
        "ctc-padded",
        CTC,
        ["float[2]", "float[5,2,4]", "int64[2,3]", "int32[2]", "uint8[2]", "float[2]", "float[2,5,7]"],
        ("float", [5, 2, 4]),
    ),
    (
        "ctc-concatenated",
        CTC,
        ["float16[N]", "float16[T,N,C]", "bool[L]", "int8[N]", "int16[N]", "float[N]", "double[N,T,A]"],
        ("float16", ["T", "N", "C"]),
    ),
    (
        "ctc-rank-unknown",
        CTC,
        ["float[]", "float[]", "float[]", "int64[]", "int64[]", "float[]", "float[]"],
        ("float", None),
    ),
]


@pytest.mark.parametrize(("call", "types", "expected"), [row[1:] for row in INFERRED], ids=[row[0] for row in INFERRED])
def test_infers(call: str, types: list[str], expected: tuple[str, list[int | str | None] | None]) -> None:
    assert inferred(graph_of(call, types)) == expected


@pytest.mark.parametrize(("call", "types"), [row[1:3] for row in INFERRED], ids=[row[0] for row in INFERRED])
def test_checker_accepts(call: str, types: list[str]) -> None:
    model = graph_of(call, types)
    dtype, dims = inferred(model)
    model.graph.output[0].type.CopyFrom(
        helper.make_tensor_type_proto(TensorProto.DataType.Value(dtype.upper()), dims or [])
    )
    for value in (*model.graph.input, *model.graph.output):
        # The checker wants a shape on what a graph takes and gives.
        value.type.tensor_type.shape.SetInParent()
    if dims is not None and all(not t.endswith("[]") for t in types):
        checker.check_model(model, full_check=True)
    else:
        checker.check_model(model)


PROPAGATED = [
    ("matmul", HARDSHRINK, ["float[2,3]"] * 2, "out = MatMul (y, w)", [2, 5]),
    ("matmul-of-a-name", KL_DIV, ["float[N,3]"] * 3, "out = MatMul (y, w)", ["N", 5]),
    ("transpose", HARDSHRINK, ["float[N,1]", "float[1,M]"], "out = Transpose (y)", ["M", "N"]),
    ("flatten", BATCH_NORM, ["float[2,3,4]"] * 2 + ["float[3]"] * 5 + ["int32[2]"], "out = Flatten (y)", [2, 12]),
    (
        "reshape-by-its-shape",
        HARDSHRINK,
        ["float[4,1,3]", "float[2,1]"],
        "s = Shape (y)\n q = ReduceProd <keepdims: int = 1> (s)\n out = Reshape (y, q)",
        [None],
    ),
    (
        "reshape-by-constant",
        CTC,
        ["float[2]", "float[5,2,4]", "int64[2,3]", "int32[2]", "uint8[2]", "float[2]", "float[2,5,7]"],
        "s = Constant <value_ints: ints = [10, -1]> ()\n out = Reshape (y, s)",
        [10, 4],
    ),
    ("another-of-ours", HARDSHRINK, ["float16[4,1]", "float[1,3]"], "out = aclnn.HardshrinkBackward (y, y)", [4, 3]),
    (
        "if-body",
        HARDSHRINK,
        ["float[2,1]", "float[3]"],
        """q = Constant <value = bool {1}> ()
     out = If (q) <then_branch = yes () => (float[2,5] r) { r = MatMul (y, w) },
                   else_branch = no () => (float[2,5] s) { t = aclnn.KlDivBackward (y, y, y)
                                                           s = MatMul (t, w) }>""",
        [2, 5],
    ),
]


@pytest.mark.parametrize(
    ("call", "types", "after", "expected"), [row[1:] for row in PROPAGATED], ids=[row[0] for row in PROPAGATED]
)
def test_shapes_propagate(call: str, types: list[str], after: str, expected: list[int | str | None]) -> None:
    model = graph_of(call, types, after)
    model.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [3, 5], [0.0] * 15))
    assert inferred(model) == ("float", expected)


# --- refusals --------------------------------------------------------------------------------------------------------

CTC_TYPES = ["float[2]", "float[5,2,4]", "int64[2,3]", "int32[2]", "int32[2]", "float[2]", "float[2,5,7]"]
NORM_TYPES = ["float[2,3,4]"] * 2 + ["float[3]"] * 5 + ["int32[2]"]


def _but(types: list[str], **other: str) -> list[str]:
    return [other.get(name, kind) for name, kind in zip("abcdefgh", types, strict=False)]


REFUSED: list[tuple[str, str, list[str], str, str]] = [
    (
        "hardshrink-shape",
        HARDSHRINK,
        ["float[2,3]", "float[2,4]"],
        "",
        r"'self' has shape \(2, 4\), expected .*'grad_output'.*\(2, 3\)",
    ),
    (
        "hardshrink-rank-9",
        HARDSHRINK,
        ["float[1,1,1,1,1,1,1,1,2]", "float"],
        "",
        r"'grad_output' has shape \(1, 1, 1, 1, 1, 1, 1, 1, 2\), expected at most 8 dimensions",
    ),
    (
        "hardshrink-dtype",
        HARDSHRINK,
        ["float[2]", "int32[2]"],
        "",
        r"'self' has dtype int32, expected one of bfloat16, double, float, float16",
    ),
    (
        "kl-grad-too-large",
        KL_DIV,
        ["float[2,2,3]", "float[2,3]", "float[2,3]"],
        "",
        r"'grad_output' has shape \(2, 2, 3\), expected .*broadcasts to .*\(2, 3\)",
    ),
    (
        "kl-target",
        KL_DIV,
        ["float", "float[N,3]", "float[2,4]"],
        "",
        r"'target' has shape \(2, 4\), expected .*\(N, 3\)",
    ),
    (
        "kl-reduction",
        KL_DIV,
        ["float"] * 3,
        "<reduction: int = 4>",
        r"'reduction' is 4, expected one of 0 \(none\), 1 \(mean\), 2 \(sum\), 3 \(batchmean\)",
    ),
    ("kl-log-target", KL_DIV, ["float"] * 3, "<log_target: int = 2>", r"'log_target' is 2, expected one of 0 .*1 "),
    (
        "kl-rank-9",
        KL_DIV,
        ["float", "float", "float[1,1,1,1,1,1,1,1,1]"],
        "",
        r"'target' has shape .*at most 8 dimensions",
    ),
    ("bce-target", BCE, _but(["float[2,3]"] * 5, c="float[3]"), "", r"'target' has shape \(3,\), expected \(2, 3\)"),
    (
        "bce-weight",
        BCE,
        _but(["float[2,3]"] * 5, d="float[2]"),
        "",
        r"'weight' has shape \(2,\), expected .*'self'.*\(2, 3\)",
    ),
    (
        "bce-pos-weight",
        BCE,
        _but(["float[2,3]"] * 5, e="float[1,2,3]"),
        "",
        r"'pos_weight' has shape \(1, 2, 3\), expected .*\(2, 3\)",
    ),
    (
        "bce-batchmean",
        BCE,
        ["float"] * 5,
        "<reduction: int = 3>",
        r"'reduction' is 3, expected one of 0 \(none\), 1 \(mean\), 2 \(sum\)",
    ),
    ("bce-dtype", BCE, _but(["float"] * 5, d="int64"), "", r"'weight' has dtype int64, expected one of"),
    (
        "norm-rank-1",
        BATCH_NORM,
        _but(NORM_TYPES, a="float[3]", b="float[3]"),
        "",
        r"'input' has shape \(3,\), expected 2 to 8 dimensions",
    ),
    (
        "norm-rank-9",
        BATCH_NORM,
        _but(NORM_TYPES, h="int32[1,1,1,1,1,1,1,1,1]"),
        "",
        r"'counter' has shape .* at most 8 dimensions",
    ),
    (
        "norm-no-channel",
        BATCH_NORM,
        ["float[2,0]"] * 2 + ["float[0]"] * 5 + ["int32"],
        "",
        r"'input' has shape \(2, 0\), expected at least one channel",
    ),
    (
        "norm-grad",
        BATCH_NORM,
        _but(NORM_TYPES, a="float[2,3,1]"),
        "",
        r"'grad_out' has shape \(2, 3, 1\), expected \(2, 3, 4\)",
    ),
    *(
        (
            f"norm-{name}",
            BATCH_NORM,
            _but(NORM_TYPES, **{place: "float[4]"}),
            "",
            rf"'{name}' has shape \(4,\), expected \(3,\)",
        )
        for name, place in {"mean": "c", "invstd": "d", "weight": "e", "sum_dy": "f", "sum_dy_xmu": "g"}.items()
    ),
    ("norm-mean-rank", BATCH_NORM, _but(NORM_TYPES, c="float[3,1]"), "", r"'mean' has shape \(3, 1\), expected \(3,\)"),
    (
        "norm-counter-dtype",
        BATCH_NORM,
        _but(NORM_TYPES, h="int64[2]"),
        "",
        r"'counter' has dtype int64, expected one of .*int32",
    ),
    ("ctc-grad", CTC, _but(CTC_TYPES, a="float[3]"), "", r"'grad_out' has shape \(3,\), expected .*\(2,\)"),
    ("ctc-log-probs", CTC, _but(CTC_TYPES, b="float[5,2]"), "", r"'log_probs' has shape \(5, 2\), expected"),
    ("ctc-targets", CTC, _but(CTC_TYPES, c="int64[2,3,1]"), "", r"'targets' has shape \(2, 3, 1\), expected"),
    ("ctc-targets-batch", CTC, _but(CTC_TYPES, c="int64[3,3]"), "", r"'targets' has shape \(3, 3\), expected"),
    ("ctc-input-lengths", CTC, _but(CTC_TYPES, d="int32[1]"), "", r"'input_lengths' has shape \(1,\), expected"),
    ("ctc-target-lengths", CTC, _but(CTC_TYPES, e="int32[2,1]"), "", r"'target_lengths' has shape \(2, 1\), expected"),
    ("ctc-loss", CTC, _but(CTC_TYPES, f="float[5]"), "", r"'neg_log_likelihood' has shape \(5,\), expected"),
    ("ctc-log-alpha", CTC, _but(CTC_TYPES, g="float[5,2,7]"), "", r"'log_alpha' has shape \(5, 2, 7\), expected"),
    (
        "ctc-narrow-alpha",
        CTC,
        _but(CTC_TYPES, g="float16[2,5,7]"),
        "",
        r"'log_alpha' has dtype float16, expected .*float",
    ),
    (
        "ctc-targets-dtype",
        CTC,
        _but(CTC_TYPES, c="double[2,3]"),
        "",
        r"'targets' has dtype double, expected one of bool, float, float16, int32, int64",
    ),
    (
        "ctc-lengths-dtype",
        CTC,
        _but(CTC_TYPES, d="float[2]"),
        "",
        r"'input_lengths' has dtype float, expected one of int16, int32, int64, int8, uint8",
    ),
    ("ctc-blank", CTC, CTC_TYPES, "<blank: int = 4>", r"'blank' is 4, expected .*\[0, 4\)"),
    ("ctc-blank-below-0", CTC, CTC_TYPES, "<blank: int = -1>", r"'blank' is -1, expected .*\[0, 4\)"),
    ("ctc-zero-infinity", CTC, CTC_TYPES, "<zero_infinity: int = 2>", r"'zero_infinity' is 2, expected one of 0 .*1 "),
]


@pytest.mark.parametrize(
    ("call", "types", "attributes", "message"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED]
)
@pytest.mark.parametrize("how", ["strict", "lenient", "checker", "link"])
def test_refuses(call: str, types: list[str], attributes: str, message: str, how: str) -> None:
    model = graph_of(call, types, attributes=attributes)
    op_type = call.split()[0]
    whole = rf"^{op_type}: (input|attribute) {message}.*\(ACLNN_ERR_PARAM_INVALID, 161002\)$"
    if how == "checker":
        model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        model.graph.output[0].type.tensor_type.ClearField("shape")
        model.graph.output[0].type.tensor_type.shape.SetInParent()
    with pytest.raises(onnx_ops.OpError, match=whole) as caught:
        {
            "strict": lambda: shape_inference.infer_shapes(model, check_type=True, strict_mode=True),
            "lenient": lambda: shape_inference.infer_shapes(model),
            "checker": lambda: checker.check_model(model, full_check=True),
            "link": lambda: onnx_ops.link(model),
        }[how]()
    assert caught.value.op_type == op_type
    assert caught.value.status is onnx_ops.Status.ACLNN_ERR_PARAM_INVALID


@pytest.mark.parametrize(
    ("call", "name"),
    [("KlDivBackward (a, b)", "target"), ("KlDivBackward (, a, b)", "grad_output"), ("HardshrinkBackward (a)", "self")],
)
def test_missing_input_has_a_status_of_its_own(call: str, name: str) -> None:
    model = graph_of(call, ["float[2]", "float[2]"])
    with pytest.raises(
        onnx_ops.OpError, match=rf"required input '{name}' is missing.*\(ACLNN_ERR_PARAM_NULLPTR, 161001\)"
    ):
        onnx_ops.link(model)


def test_an_attribute_of_no_schema_is_refused_by_the_checker() -> None:
    model = graph_of(HARDSHRINK, ["float[2]"] * 2, attributes="<lambda: float = 0.5>")
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    with pytest.raises(checker.ValidationError, match="lambda"):
        checker.check_model(model, full_check=True)


# --- make_node -------------------------------------------------------------------------------------------------------


def attributes_of(node: onnx.NodeProto) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute}


def test_node() -> None:
    node = onnx_ops.make_node(
        "HardshrinkBackward", ["g", "x"], ["o"], name="it", doc_string="What it does.", lambd=0.25
    )
    assert node == helper.make_node(
        "HardshrinkBackward", ["g", "x"], ["o"], name="it", doc_string="What it does.", domain="aclnn", lambd=0.25
    )


@pytest.mark.parametrize(
    "inputs",
    [
        ["g", "x", "y", None, "p"],
        ["g", "x", "y", "", "p"],
        {"grad_output": "g", "self": "x", "target": "y", "pos_weight": "p"},
        {"pos_weight": "p", "weight": None, "target": "y", "self": "x", "grad_output": "g"},
    ],
    ids=["none", "empty-name", "by-name", "by-name-in-other-order"],
)
def test_node_with_an_input_left_out(inputs: Any) -> None:
    node = onnx_ops.make_node("BinaryCrossEntropyWithLogitsBackward", inputs, ["o"])
    assert list(node.input) == ["g", "x", "y", "", "p"]


@pytest.mark.parametrize("tail", [[], [None], ["", None]])
def test_inputs_left_out_at_the_end_are_cut_off(tail: list[str | None]) -> None:
    node = onnx_ops.make_node("BinaryCrossEntropyWithLogitsBackward", ["g", "x", "y", *tail], ["o"])
    assert list(node.input) == ["g", "x", "y"]


@pytest.mark.parametrize(
    ("given", "stored"),
    [(r, int(r)) for r in onnx_ops.Reduction]
    + [(int(r), int(r)) for r in onnx_ops.Reduction]
    + [(r.name.lower(), int(r)) for r in onnx_ops.Reduction]
    + [("Mean", 1), ("SUM", 2)],
    ids=str,
)
def test_reduction(given: Any, stored: int) -> None:
    node = onnx_ops.make_node("KlDivBackward", ["g", "x", "y"], ["o"], reduction=given)
    assert attributes_of(node) == {"reduction": stored}
    assert node.attribute[0].type == onnx.AttributeProto.INT


def test_flags_may_be_bools_and_floats_ints() -> None:
    node = onnx_ops.make_node("KlDivBackward", ["g", "x", "y"], ["o"], log_target=True)
    assert (node.attribute[0].type, node.attribute[0].i) == (onnx.AttributeProto.INT, 1)
    node = onnx_ops.make_node("HardshrinkBackward", ["g", "x"], ["o"], lambd=2)
    assert (node.attribute[0].type, node.attribute[0].f) == (onnx.AttributeProto.FLOAT, 2.0)


LOSS = "BinaryCrossEntropyWithLogitsBackward"
BAD_NODES: dict[str, tuple[str, Any, list[str], dict[str, Any], str]] = {
    "unknown-op": (
        "HardshrinkForward",
        ["g", "x"],
        ["o"],
        {},
        r"HardshrinkForward: no such op in domain aclnn, expected one of .*KlDivBackward.*161002",
    ),
    "too-many-inputs": (
        "HardshrinkBackward",
        ["g", "x", "y"],
        ["o"],
        {},
        r"HardshrinkBackward: got 3 inputs, expected at most 2.*161002",
    ),
    "missing": (
        "HardshrinkBackward",
        ["g"],
        ["o"],
        {},
        r"HardshrinkBackward: required input 'self' is missing.*161001",
    ),
    "missing-first": (
        "HardshrinkBackward",
        [None, "x"],
        ["o"],
        {},
        r"required input 'grad_output' is missing.*161001",
    ),
    "missing-by-name": (
        "KlDivBackward",
        {"self": "x", "target": "y"},
        ["o"],
        {},
        r"required input 'grad_output' is missing.*161001",
    ),
    "unknown-input": (
        "HardshrinkBackward",
        {"grad_output": "g", "input": "x"},
        ["o"],
        {},
        r"unknown input 'input', expected grad_output, self.*161002",
    ),
    "no-output": ("HardshrinkBackward", ["g", "x"], [], {}, r"required output 'grad_input' has no name"),
    "two-outputs": ("HardshrinkBackward", ["g", "x"], ["o", "p"], {}, r"got 2 outputs, expected 1"),
    "unknown-attribute": (
        "HardshrinkBackward",
        ["g", "x"],
        ["o"],
        {"lambda_": 1},
        r"unknown attribute 'lambda_', expected lambd\b.*161002",
    ),
    "no-attributes": (
        "BatchNormElemtBackward",
        list("abcdefgh"),
        ["o"],
        {"epsilon": 1},
        r"unknown attribute 'epsilon', expected none",
    ),
    "unknown-reduction": (
        "KlDivBackward",
        ["g", "x", "y"],
        ["o"],
        {"reduction": "average"},
        r"'reduction' is 'average', expected one of 0 \(none\), 1 \(mean\), 2 \(sum\), 3 \(batchmean\)",
    ),
    "unknown-reduction-of-another-op": (
        LOSS,
        ["g", "x", "y"],
        ["o"],
        {"reduction": "average"},
        r"'reduction' is 'average', expected one of 0 \(none\), 1 \(mean\), 2 \(sum\); ",
    ),
    "reduction-out-of-range": (
        "KlDivBackward",
        ["g", "x", "y"],
        ["o"],
        {"reduction": 4},
        r"'reduction' is 4, expected one of 0 \(none\), 1 \(mean\), 2 \(sum\), 3 \(batchmean\); ",
    ),
    "reduction-of-another-op": (
        LOSS,
        ["g", "x", "y"],
        ["o"],
        {"reduction": "batchmean"},
        r"'reduction' is 'batchmean', expected one of 0 \(none\), 1 \(mean\), 2 \(sum\); ",
    ),
    "number-of-another-op": (
        LOSS,
        ["g", "x", "y"],
        ["o"],
        {"reduction": 3},
        r"'reduction' is 3, expected one of 0 \(none\), 1 \(mean\), 2 \(sum\); ",
    ),
    "reduction-none": ("KlDivBackward", ["g", "x", "y"], ["o"], {"reduction": None}, r"'reduction' is None, expected"),
    "no-number": ("HardshrinkBackward", ["g", "x"], ["o"], {"lambd": "much"}, r"'lambd' is 'much', expected a number"),
    "no-whole-number": ("KlDivBackward", ["g", "x", "y"], ["o"], {"log_target": 0.5}, r"is 0.5, expected a whole"),
    "infinite-whole-number": (
        "KlDivBackward",
        ["g", "x", "y"],
        ["o"],
        {"log_target": float("inf")},
        r"'log_target' is inf, expected",
    ),
    "flag-out-of-range": ("KlDivBackward", ["g", "x", "y"], ["o"], {"log_target": 2}, r"'log_target' is 2, expected"),
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_node_is_refused(name: str) -> None:
    op_type, inputs, outputs, attributes, message = BAD_NODES[name]
    with pytest.raises(onnx_ops.OpError, match=message):
        onnx_ops.make_node(op_type, inputs, outputs, **attributes)


@each_op
def test_node_of_every_op_passes_the_checker(record: Record) -> None:
    names, outputs = list(record.inputs), list(record.outputs)
    for inputs in (names, dict(zip(names, names, strict=True))):
        node = onnx_ops.make_node(record.op, inputs, outputs, **record.defaults)
        assert list(node.input) == names
        assert list(node.output) == outputs
        assert set(attributes_of(node)) == set(record.attributes)
        context = checker.C.CheckerContext()
        context.ir_version, context.opset_imports = 10, {"": 21, "aclnn": 1}
        checker.check_node(node, context)
