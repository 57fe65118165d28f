"""Models around the ops with the results that they must have, by formulas of their own, however they are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import parser

Array = np.ndarray[Any, Any]
NEWEST_OPSET = 26  # of the default domain in onnxruntime 1.31

# --- oracle: the formulas of the ops, in float64 --------------------------------------------------------------------


def _wide(*arrays: Any) -> list[Array]:
    return [np.asarray(a).astype(np.float64) for a in arrays]


def hardshrink(grad: Array, x: Array, lambd: float = 0.5) -> Array:
    g, wide = _wide(grad, x)
    out = np.where(np.abs(wide) > np.float64(np.float32(max(lambd, 0))), g, 0)
    return out.astype(np.promote_types(grad.dtype, x.dtype))


def kl_div(grad: Array, x: Array, target: Array, reduction: int = 1, log_target: int = 0) -> Array:
    g, t = _wide(grad, target)
    space = np.broadcast_shapes(x.shape, t.shape)
    d = np.broadcast_to(-(np.exp(t) if log_target else t) * g, space)
    d = d / {0: 1, 1: d.size, 2: 1, 3: space[0] if space else 1}[reduction]
    lead = len(space) - x.ndim
    axes = tuple(i for i, n in enumerate(space) if i < lead or x.shape[i - lead] != n)
    return d.sum(axis=axes).reshape(x.shape).astype(x.dtype)


def bce(grad: Array, x: Array, target: Array, weight: Any = 1, pos_weight: Any = 1, reduction: int = 1) -> Array:
    g, z, y, w, p = _wide(grad, x, target, weight, pos_weight)
    d = g * w * ((p * y + 1 - y) / (1 + np.exp(-z)) - p * y)
    return (d / z.size if reduction == 1 else d).astype(target.dtype)


def batch_norm(
    grad: Array, x: Array, mean: Array, invstd: Array, weight: Any, sum_dy: Array, sum_dy_xmu: Array, counter: Array
) -> Array:
    g, z, n = *_wide(grad, x), counter.astype(np.float64).sum()
    column = (-1, *[1] * (x.ndim - 2))
    mu, inv, w, dy, xmu = (
        np.broadcast_to(a, mean.shape).reshape(column) for a in _wide(mean, invstd, weight, sum_dy, sum_dy_xmu)
    )
    return (((g - dy / n) - (z - mu) * (inv**2 * (xmu / n))) * inv * w).astype(x.dtype)


# Relative to the largest expected number: a few roundings in the dtype that the result is stored in.
TOLERANCE = {np.dtype(np.float16): 1e-3, np.dtype(np.float32): 2e-6, np.dtype(np.float64): 1e-12}


def assert_same(actual: Array, expected: Array, tolerance: float | None = None) -> None:
    expected = np.asarray(expected)
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    size = np.abs(expected).max(initial=0.0, where=np.isfinite(expected)).astype(np.float64)
    near = (TOLERANCE[expected.dtype] if tolerance is None else tolerance) * size
    np.testing.assert_allclose(actual.astype(np.float64), expected.astype(np.float64), rtol=0, atol=near)


# --- models ---------------------------------------------------------------------------------------------------------


def model_of(text: str, imports: str = '"" : 21, "aclnn" : 1', ir_version: int = 10) -> onnx.ModelProto:
    return parser.parse_model(f"<ir_version: {ir_version}, opset_import: [{imports}]>\n{text}")


@dataclass(frozen=True)
class Case:
    """A model, what it is fed, and what its outputs are.

    Attributes:
        known_failures: backend to reason, of defects that are not ours.
        inferable: whether onnx can tell the types of all outputs.
        tolerance: relative, where one per output dtype does not do.
    """

    id: str
    model: onnx.ModelProto
    feeds: Mapping[str, Array]
    expected: tuple[Array, ...]
    known_failures: Mapping[str, str] = field(default_factory=dict)
    inferable: bool = True
    tolerance: float | None = None


def _data() -> dict[str, Array]:
    rng = np.random.default_rng(20)
    return {
        "g": rng.normal(size=(2, 3)).astype(np.float32),
        "x": rng.normal(size=(2, 3)).astype(np.float32),
        "y": rng.uniform(size=(2, 3)).astype(np.float32),
        "w": rng.uniform(0.5, 2, size=(3,)).astype(np.float32),
        "c": rng.uniform(0.5, 2, size=(3,)).astype(np.float32),
        "n": np.array([3, 4], np.int32),
    }


DATA = _data()
G, X, Y, W, C, N = (DATA[k] for k in "gxywcn")
G2, X2, Y2, W2 = (a.astype(np.float16) for a in (G, X, Y, W))
G8, X8, Y8, W8 = (a.astype(np.float64) for a in (G, X, Y, W))

REFERENCE_DEFAULTS = "onnx.reference does not know the defaults of a function's attributes"
REFERENCE_INPUTS = "onnx.reference wants every input of a function to be given"
INLINER_DEFAULTS = "onnx.inliner drops an attribute that a node leaves to the function's default"
REFERENCE_LOOP = "onnx.reference concatenates the scan outputs of Loop instead of stacking them"
REFERENCE_PRODUCER = "onnx.reference has no com.microsoft operators"
REFERENCE_OVERLOADS = "onnx.reference takes the first function of a name whatever the overload"
INLINER_VERSIONS = "onnx.inliner leaves functions that import another version, unless it is told to convert them"


def feeds_of(model: onnx.ModelProto, values: Mapping[str, Array]) -> dict[str, Array]:
    return {i.name: values[i.name] for i in model.graph.input}


def case(
    name: str,
    text: str,
    values: Mapping[str, Array],
    *expected: Array,
    imports: str = '"" : 21, "aclnn" : 1',
    ir_version: int = 10,
    change: Callable[[onnx.ModelProto], None] | None = None,
    **options: Any,
) -> Case:
    model = model_of(text, imports, ir_version)
    if change:
        change(model)
    return Case(name, model, feeds_of(model, values), expected, **options)


def _name_overloads(model: onnx.ModelProto) -> None:
    for name, function, node in zip("ab", model.functions, model.graph.node, strict=True):
        function.overload = node.overload = name


def _same_dtype_case(name: str, onnx_type: str, dtype: npt.DTypeLike) -> Case:
    g, x, y, w, c = (a.astype(dtype) for a in (G, X, Y, W, C))
    t = onnx_type
    return case(
        f"every-op-{name}",
        f"""graph ({t}[2,3] g, {t}[2,3] x, {t}[2,3] y, {t}[3] w, {t}[3] c, int32[2] n)
                => ({t}[2,3] h, {t}[2,3] k, {t}[2,3] b, {t}[2,3] e) {{
            h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
            k = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 0> (g, x, y)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, w, c)
            e = aclnn.BatchNormElemtBackward (g, x, c, w, c, w, c, n)
        }}""",
        {"g": g, "x": x, "y": y, "w": w, "c": c, "n": N},
        hardshrink(g, x, 0.25),
        kl_div(g, x, y, 2),
        bce(g, x, y, w, c),
        batch_norm(g, x, c, w, c, w, c, N),
    )


def _bfloat16_case() -> Case:
    g, x, y, w = (a.astype(ml_dtypes.bfloat16) for a in (G, X, Y, W))
    wide = [
        a.astype(np.float32)
        for a in (hardshrink(g, x, 0.25), kl_div(g, x, y, 2), bce(g, x, y, w, w), batch_norm(g, x, w, w, 1, w, w, w))
    ]
    return case(
        "every-op-bfloat16",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w)
                => (float[2,3] oh, float[2,3] ok, float[2,3] ob, float[2,3] oe) {
            g2 = Cast <to = 16> (g)
            x2 = Cast <to = 16> (x)
            y2 = Cast <to = 16> (y)
            w2 = Cast <to = 16> (w)
            h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g2, x2)
            k = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 0> (g2, x2, y2)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g2, x2, y2, w2, w2)
            e = aclnn.BatchNormElemtBackward (g2, x2, w2, w2, , w2, w2, w2)
            oh = Cast <to = 1> (h)
            ok = Cast <to = 1> (k)
            ob = Cast <to = 1> (b)
            oe = Cast <to = 1> (e)
        }""",
        DATA,
        *wide,
        tolerance=8e-3,
    )


def _clear_shapes(model: onnx.ModelProto) -> None:
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            dim.Clear()


def _clear_body_types(model: onnx.ModelProto) -> None:
    for attribute in model.graph.node[0].attribute:
        for value in (*attribute.g.input, *attribute.g.output):
            value.ClearField("type")


def _loop(g: Array, x: Array, rounds: int) -> tuple[Array, Array]:
    items = []
    for _ in range(rounds):
        items.append(hardshrink(g, x))
        g = g + kl_div(g, g, x, 2)
    return g, np.stack(items)


def _scan(g: Array, xs: Array) -> tuple[Array, Array]:
    items = []
    for x in xs:
        items.append(hardshrink(g, x))
        g = g + kl_div(g, g, x, 1, 1)
    return g, np.stack(items)


MIXTURES = """
    graph (float16[2,3] g2, float[2,3] g, double[2,3] g8, float16[2,3] x2, float[2,3] x, double[2,3] x8)
        => (float16[2,3] a, float[2,3] b, float[2,3] c, double[2,3] d, double[2,3] e, double[2,3] f, float[2,3] i) {
    a = aclnn.HardshrinkBackward <lambd: float = 0.25> (g2, x2)
    b = aclnn.HardshrinkBackward <lambd: float = 0.25> (g2, x)
    c = aclnn.HardshrinkBackward <lambd: float = 0.75> (g, x2)
    d = aclnn.HardshrinkBackward <lambd: float = 0.75> (g8, x2)
    e = aclnn.HardshrinkBackward <lambd: float = 0.1> (g2, x8)
    f = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x8)
    gb = Cast <to = 16> (g2)
    i = aclnn.HardshrinkBackward <lambd: float = 0.2> (gb, x2)
}"""
MIXED = {"g2": G2, "g": G, "g8": G8, "x2": X2, "x": X, "x8": X8}
SCAN_BODY = """body = step (float[2,3] state, float[2,3] item) => (float[2,3] next, float[2,3] out) {
        d = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 1> (state, state, item)
        out = aclnn.HardshrinkBackward <lambd: float = 0.5> (state, item)
        next = Add (state, d)
    }"""
SCAN = (
    "graph (float[2,3] g, float[4,2,3] xs) => (float[2,3] o, float[4,2,3] items) {"
    f" o, items = Scan <num_scan_inputs: int = 1, {SCAN_BODY}> (g, xs) }}"
)
XS = np.stack([X, X + 1, Y, -X]).astype(np.float32)

CASES = [
    _same_dtype_case("float32", "float", np.float32),
    _same_dtype_case("float16", "float16", np.float16),
    _same_dtype_case("float64", "double", np.float64),
    _bfloat16_case(),
    case(
        "attributes-left-to-defaults",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y) => (float[2,3] h, float[2,3] k, float[2,3] b) {
            h = aclnn.HardshrinkBackward (g, x)
            k = aclnn.KlDivBackward (g, x, y)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward (g, x, y)
        }""",
        DATA,
        hardshrink(G, X),
        kl_div(G, X, Y),
        bce(G, X, Y),
        known_failures={"reference": REFERENCE_DEFAULTS},
    ),
    case(
        "several-lambd",
        """graph (float[2,3] g, float[2,3] x) => (float[2,3] a, float[2,3] b, float[2,3] c) {
            a = aclnn.HardshrinkBackward <lambd: float = 0.123456789> (g, x)
            b = aclnn.HardshrinkBackward <lambd: float = 0.75> (g, x)
            c = aclnn.HardshrinkBackward <lambd: float = -1.0> (g, x)
        }""",
        DATA,
        hardshrink(G, X, 0.123456789),
        hardshrink(G, X, 0.75),
        hardshrink(G, X, -1.0),
    ),
    case(
        "several-reductions",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w, float[3] c)
                => (float[2,3] a, float[2,3] b, float[2,3] d, float[2,3] e, float[2,3] h, float[2,3] f, float[2,3] i) {
            a = aclnn.KlDivBackward <reduction: int = 0, log_target: int = 0> (g, x, y)
            b = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 1> (g, x, y)
            d = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 0> (g, x, y)
            e = aclnn.KlDivBackward <reduction: int = 3, log_target: int = 1> (g, x, y)
            h = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 0> (g, x, y, w, c)
            f = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, w, c)
            i = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 2> (g, x, y, w, c)
        }""",
        DATA,
        kl_div(G, X, Y, 0),
        kl_div(G, X, Y, 1, 1),
        kl_div(G, X, Y, 2),
        kl_div(G, X, Y, 3, 1),
        bce(G, X, Y, W, C, reduction=0),
        bce(G, X, Y, W, C, reduction=1),
        bce(G, X, Y, W, C, reduction=2),
    ),
    case(
        "optional-inputs-given-and-left-out",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w, float[3] c, int32[2] n)
                => (float[2,3] a, float[2,3] b, float[2,3] d, float[2,3] e, float[2,3] f, float[2,3] i) {
            a = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, w)
            d = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, , c)
            e = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, c, w)
            f = aclnn.BatchNormElemtBackward (g, x, c, w, , w, c, n)
            i = aclnn.BatchNormElemtBackward (g, x, c, w, c, w, c, n)
        }""",
        DATA,
        bce(G, X, Y),
        bce(G, X, Y, W),
        bce(G, X, Y, 1, C),
        bce(G, X, Y, C, W),
        batch_norm(G, X, C, W, 1, W, C, N),
        batch_norm(G, X, C, W, C, W, C, N),
    ),
    case(
        "optional-inputs-in-float64-and-float16",
        """graph (double[2,3] g8, double[2,3] x8, double[2,3] y8, double[3] w8, float16[2,3] g2, float16[2,3] x2,
                  float16[2,3] y2, float16[3] w2, int32[2] n)
                => (double[2,3] a, double[2,3] b, float16[2,3] c, float16[2,3] d) {
            a = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g8, x8, y8)
            c = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g2, x2, y2, w2)
            b = aclnn.BatchNormElemtBackward (g8, x8, w8, w8, , w8, w8, n)
            d = aclnn.BatchNormElemtBackward (g2, x2, w2, w2, w2, w2, w2, n)
        }""",
        {"g8": G8, "x8": X8, "y8": Y8, "w8": W8, "g2": G2, "x2": X2, "y2": Y2, "w2": W2, "n": N},
        bce(G8, X8, Y8),
        batch_norm(G8, X8, W8, W8, 1, W8, W8, N),
        bce(G2, X2, Y2, W2),
        batch_norm(G2, X2, W2, W2, W2, W2, W2, N),
        known_failures={"reference": REFERENCE_INPUTS},
    ),
    case(
        "optional-inputs-filled-in-a-graph-and-in-its-subgraph",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w, bool c)
                => (float[2,3] o, float[2,3] p, float[2,3] q) {
            o = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y)
            p = If (c) <
                then_branch = then_part () => (float[2,3] inner) {
                    inner = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, y, y)
                },
                else_branch = else_part () => (float[2,3] same) { same = Identity (g) }>
            q = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, w)
        }""",
        DATA | {"c": np.array(True)},
        bce(G, X, Y),
        bce(G, Y, Y),
        bce(G, X, Y, W),
        known_failures={"reference": REFERENCE_INPUTS},
    ),
    case(
        "value-named-like-a-filled-input",
        """graph (float[2,3] g, float[2,3] x, float[2,3] a_weight_ones, float[3] w) => (float[2,3] a, float[2,3] b) {
            a = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, a_weight_ones)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, a_weight_ones, w)
        }""",
        DATA | {"a_weight_ones": Y},
        bce(G, X, Y),
        bce(G, X, Y, W),
        known_failures={"reference": REFERENCE_INPUTS},
    ),
    *(
        case(
            f"function-of-opset-{opset}",
            f"""graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w)
                    => (float[2,3] o, float[2,3] p, float[2,3] q, float[2,3] r) {{
                o, p, q = own.F (g, x, y)
                r = aclnn.HardshrinkBackward <lambd: float = 1.5> (g, x)
            }}
            <domain: "own", opset_import: ["" : {opset}, "aclnn" : 1]>
            F (g, x, y) => (o, p, q) {{
                o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x)
                p = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 1> (g, x, y)
                q = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 0> (g, x, y)
            }}""",
            DATA,
            hardshrink(G, X, 0.1),
            kl_div(G, X, Y, 2, 1),
            bce(G, X, Y, reduction=0),
            hardshrink(G, X, 1.5),
            imports='"" : 21, "aclnn" : 1, "own" : 1',
            known_failures={"inlined": INLINER_VERSIONS, "reference": REFERENCE_INPUTS},
        )
        for opset in (12, 17, 22)
    ),
    case(
        "function-overloads",
        """graph (float[2,3] g, float[2,3] x) => (float[2,3] o, float[2,3] p) {
            o = own.F (g, x)
            p = own.F (g, x)
        }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
        F <l: float = 0.1> (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = @l> (g, x) }
        <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
        F <l: float = 1.5> (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = @l> (g, x) }""",
        DATA,
        hardshrink(G, X, 0.1),
        hardshrink(G, X, 1.5),
        imports='"" : 21, "aclnn" : 1, "own" : 1',
        change=_name_overloads,
        known_failures={"reference": REFERENCE_OVERLOADS, "inlined": INLINER_DEFAULTS},
    ),
    *(
        case(
            f"imports-of-functions-alone-{number}",
            """graph (float[2,3] g, float[2,3] x) => (float[2,3] o) { o = own.F (g, x) }
            <domain: "own", opset_import: ["" : 21, "aclnn" : 1]>
            F (g, x) => (o) {
                u = Neg (x)
                o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, u)
            }""",
            DATA,
            hardshrink(G, X, 0.1),
            imports=imports,
        )
        for number, imports in enumerate(['"" : 21, "own" : 1', '"own" : 1'])
    ),
    case(
        "mixture-in-a-function",
        """graph (float16[2,3] g, float[2,3] x) => (float[2,3] o, float16[2,3] p) {
            o = own.F (g, x)
            p = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, g)
        }
        <domain: "own", opset_import: ["aclnn" : 1]>
        F (g, x) => (o) { o = aclnn.HardshrinkBackward <lambd: float = 0.1> (g, x) }""",
        {"g": G2, "x": X},
        hardshrink(G2, X, 0.1),
        hardshrink(G2, G2, 0.1),
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    ),
    *(
        case(
            f"empty-self-{number}",
            f"""graph (float g, float[{own}] x, float[{target}] y) => (float[{own}] o) {{
                o = aclnn.KlDivBackward <reduction: int = 0, log_target: int = 1> (g, x, y)
            }}""",
            {
                "g": np.ones((), np.float32),
                "x": np.ones([int(d) for d in own.split(",")], np.float32),
                "y": np.ones([int(d.replace("K", "1")) for d in target.split(",")], np.float32),
            },
            np.ones([int(d) for d in own.split(",")], np.float32),
        )
        for number, (own, target) in enumerate([("0,3", "1,3"), ("0", "1"), ("0", "K"), ("2,0", "1,1")])
    ),
    case(
        "mixed-dtypes-hardshrink",
        MIXTURES,
        MIXED,
        *(
            hardshrink(G2, X2, 0.25),
            hardshrink(G2, X, 0.25),
            hardshrink(G, X2, 0.75),
            hardshrink(G8, X2, 0.75),
            hardshrink(G2, X8, 0.1),
            hardshrink(G, X8, 0.1),
            hardshrink(G2.astype(ml_dtypes.bfloat16).astype(np.float32), X2, 0.2),
        ),
    ),
    case(
        "mixed-dtypes-kl-div",
        """graph (float[2,3] g, float16[3] w2, float[2,3] x, double[1,3] t8, float[2,1] s, double[2,2,3] u8)
                => (float[2,3] a, double[1,3] b, float16[3] c, float[2,1] d) {
            a = aclnn.KlDivBackward <reduction: int = 0, log_target: int = 0> (w2, x, t8)
            b = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 0> (g, t8, x)
            c = aclnn.KlDivBackward <reduction: int = 3, log_target: int = 1> (w2, w2, u8)
            d = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 0> (g, s, g)
        }""",
        {"g": G, "w2": W2, "x": X, "t8": Y8[:1], "s": X[:, :1], "u8": np.stack([X8, Y8])},
        kl_div(W2, X, Y8[:1], 0),
        kl_div(G, Y8[:1], X, 1),
        kl_div(W2, W2, np.stack([X8, Y8]), 3, 1),
        kl_div(G, X[:, :1], G, 2),
    ),
    case(
        "mixed-dtypes-bce-and-batch-norm",
        """graph (float[2,3] g, float16[2,3] x2, float[2,3] y, double[2,3] x8, float[3] c, double[3] w8, int32[2] n)
                => (float[2,3] a, float16[2,3] b, double[2,3] d, float16[2,3] e, float[2,3] f) {
            a = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 0> (g, x2, y)
            b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 2> (y, g, x2, , w8)
            d = aclnn.BatchNormElemtBackward (g, x8, c, w8, c, c, c, n)
            e = aclnn.BatchNormElemtBackward (g, x2, c, w8, , c, c, c)
            f = aclnn.BatchNormElemtBackward (x2, y, c, c, c, c, c, n)
        }""",
        {"g": G, "x2": X2, "y": Y, "x8": X8, "c": C, "w8": W8, "n": N},
        bce(G, X2, Y, reduction=0),
        bce(Y, G, X2, 1, W8, reduction=2),
        batch_norm(G, X8, C, W8, C, C, C, N),
        batch_norm(G, X2, C, W8, 1, C, C, C),
        batch_norm(X2, Y, C, C, C, C, C, N),
    ),
    *(
        case(
            f"if-{chosen}-branch-same-names-other-dtypes",
            """graph (bool q, float16[2,3] g2, float[2,3] x, double[2,3] g8, float16[2,3] x2) => (float[2,3] o) {
                o = If (q) <
                    then_branch = yes () => (float[2,3] r) {
                        r = aclnn.HardshrinkBackward <lambd: float = 0.3> (g2, x)
                    },
                    else_branch = no () => (float[2,3] s) {
                        r = aclnn.HardshrinkBackward <lambd: float = 0.3> (g8, x2)
                        s = Cast <to = 1> (r)
                    }>
            }""",
            {"q": np.array(chosen == "then"), "g2": G2, "x": X, "g8": G8, "x2": X2},
            hardshrink(G2, X, 0.3) if chosen == "then" else hardshrink(G8, X2, 0.3).astype(np.float32),
        )
        for chosen in ("then", "else")
    ),
    case(
        "loop-body",
        """graph (float[2,3] g, float[2,3] x, int64 rounds, bool go) => (float[2,3] o, float[k,2,3] items) {
            o, items = Loop (rounds, go, g) <body = step (int64 i, bool on, float[2,3] state)
                    => (bool still, float[2,3] next, float[2,3] item) {
                still = Identity (on)
                d = aclnn.KlDivBackward <reduction: int = 2, log_target: int = 0> (state, state, x)
                item = aclnn.HardshrinkBackward <lambd: float = 0.5> (state, x)
                next = Add (state, d)
            }>
        }""",
        DATA | {"rounds": np.array(3), "go": np.array(True)},
        *_loop(G, X, 3),
        known_failures={"reference": REFERENCE_LOOP, "plain-reference": REFERENCE_LOOP},
    ),
    case("scan-body", SCAN, {"g": G, "xs": XS}, *_scan(G, XS)),
    case("scan-body-without-types", SCAN, {"g": G, "xs": XS}, *_scan(G, XS), change=_clear_body_types),
    case(
        "if-in-function-in-if",
        """graph (bool q, float[2,3] g, float[2,3] x) => (float[2,3] o) {
            o = If (q) <
                then_branch = yes () => (float[2,3] r) {
                    r = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 0> (g, x, x)
                },
                else_branch = no () => (float[2,3] s) { s = own.Choose <t: float = 0.3> (q, g, x) }>
        }
        <domain: "own", opset_import: ["aclnn" : 1, "" : 21]>
        Choose <t> (q, g, x) => (o) {
            o = If (q) <
                then_branch = yes () => (r) {
                    r = aclnn.KlDivBackward <reduction: int = 3, log_target: int = 0> (g, x, g)
                },
                else_branch = no () => (s) { s = aclnn.HardshrinkBackward <lambd: float = @t> (g, x) }>
        }""",
        DATA | {"q": np.array(False)},
        hardshrink(G, X, 0.3),
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    ),
    case(
        "nested-functions-with-two-dtypes-and-shapes",
        """graph (float[2,3] g, float[2,3] x, double[3] g8, double[3] x8) => (float[2,3] a, double[3] b, float[2,3] c) {
            a = own.Outer <t: float = 0.25> (g, x)
            b = own.Outer <t: float = 0.75> (g8, x8)
            c = own.Outer <t: float = 0.5> (x, g)
        }
        <domain: "own", opset_import: ["" : 21]>
        Same (x) => (o) { o = Identity (x) }
        <domain: "own", opset_import: ["aclnn" : 1, "own" : 1]>
        Inner <t> (g, x) => (o) {
            h = aclnn.HardshrinkBackward <lambd: float = @t> (g, x)
            o = own.Same (h)
        }
        <domain: "own", opset_import: ["aclnn" : 1, "own" : 1]>
        Outer <t> (g, x) => (o) {
            h = own.Inner <t: float = @t> (g, x)
            o = aclnn.KlDivBackward <reduction: int = 0, log_target: int = 0> (h, x, g)
        }""",
        {"g": G, "x": X, "g8": G8[0], "x8": X8[0]},
        kl_div(hardshrink(G, X, 0.25), X, G, 0),
        kl_div(hardshrink(G8[0], X8[0], 0.75), X8[0], G8[0], 0),
        kl_div(hardshrink(X, G, 0.5), G, X, 0),
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    ),
    case(
        "function-with-other-shapes-that-broadcast",
        """graph (float[2,3] g, float[2,3] x, float[1,3] r, float[3] w) => (float[2,3] a, float[1,3] b, float[3] c) {
            a = own.Loss (g, x, x)
            b = own.Loss (g, r, x)
            c = own.Loss (g, w, x)
        }
        <domain: "own", opset_import: ["aclnn" : 1]>
        Loss (g, x, y) => (o) { o = aclnn.KlDivBackward <reduction: int = 3, log_target: int = 0> (g, x, y) }""",
        DATA | {"r": X[:1]},
        kl_div(G, X, X, 3),
        kl_div(G, X[:1], X, 3),
        kl_div(G, W, X, 3),
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    ),
    *(
        case(
            f"function-attribute-{name}",
            f"""graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {{ o = own.Loss {given} (g, x) }}
            <domain: "own", opset_import: ["aclnn" : 1]>
            Loss <r: int = 2> (g, x) => (o) {{
                o = aclnn.KlDivBackward <reduction: int = @r, log_target: int = 0> (g, x, g)
            }}""",
            DATA,
            kl_div(G, X, G, reduction),
            imports='"" : 21, "aclnn" : 1, "own" : 1',
            known_failures=failures,
        )
        for name, given, reduction, failures in (
            ("given", "<r: int = 0>", 0, {}),
            ("left-to-default", "", 2, {"reference": REFERENCE_DEFAULTS}),
        )
    ),
    case(
        "function-without-default-domain",
        """graph (float[2,3] g, float[2,3] x, float[2,3] y, float[3] w, int32[2] n)
                => (float[2,3] a, float[2,3] b, float[2,3] c, float[2,3] d) {
            a = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y, w)
            b = own.Loss (g, x, y)
            c = aclnn.BatchNormElemtBackward (g, x, w, w, w, w, w, n)
            d = own.Norm (g, x, w, n)
        }
        <domain: "own", opset_import: ["aclnn" : 1]>
        Loss (g, x, y) => (o) { o = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, y) }
        <domain: "own", opset_import: ["aclnn" : 1]>
        Norm (g, x, w, n) => (o) { o = aclnn.BatchNormElemtBackward (g, x, w, w, , w, w, n) }""",
        DATA,
        bce(G, X, Y, W),
        bce(G, X, Y),
        batch_norm(G, X, W, W, W, W, W, N),
        batch_norm(G, X, W, W, 1, W, W, N),
        known_failures={"reference": REFERENCE_INPUTS},
        imports='"" : 21, "aclnn" : 1, "own" : 1',
    ),
    *(
        case(
            f"kl-div-of-{name}",
            f"""graph (float[{g},3] g, float[{x},3] x, float[{y},3] y) => (float[{x},3] o) {{
                o = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 0> (g, x, y)
            }}""",
            {"g": G, "x": X if x == y == "K" else X[:1], "y": Y},
            kl_div(G, X if x == y == "K" else X[:1], Y),
            change=change,
        )
        for name, (g, x, y), change in (
            ("dimensions-without-names", "222", _clear_shapes),
            ("dimensions-of-one-name", "KKK", None),
            ("dimensions-of-other-names", "JKL", None),
        )
    ),
    case(
        "type-behind-a-foreign-op",
        """graph (float[2,2] g, float[2,2] x) => (float[2,2] o, float[2,2] p) {
            u = com.microsoft.Inverse (g)
            v = com.microsoft.Inverse (x)
            h = aclnn.HardshrinkBackward <lambd: float = 0.5> (u, v)
            k = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 0> (u, h, v)
            o = com.microsoft.Inverse (k)
            p = Identity (h)
        }""",
        {"g": np.diag([2, 0.5]).astype(np.float32), "x": np.diag([0.25, 1.25]).astype(np.float32)},
        np.diag([-2.0, -2.5]).astype(np.float32),
        np.diag([0.5, 2]).astype(np.float32),
        imports='"" : 21, "aclnn" : 1, "com.microsoft" : 1',
        known_failures={"reference": REFERENCE_PRODUCER, "plain-reference": REFERENCE_PRODUCER},
        inferable=False,
    ),
    *(
        case(
            f"imports-{name}",
            "graph (float[2,3] g, float[2,3] x) => (float[2,3] o) {"
            " o = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x) }",
            DATA,
            hardshrink(G, X, 0.25),
            imports=imports,
        )
        for name, imports in {
            "no-default-domain": '"aclnn" : 1',
            "spelled-ai.onnx": '"ai.onnx" : 21, "aclnn" : 1',
        }.items()
    ),
    *(
        case(
            f"opset-{opset}-ir-{ir_version}",
            """graph (float[2,3] g, float[2,3] x, float[1,3] y, float[3] w)
                    => (float[2,3] h, float[1,3] k, float[2,3] b, float[2,3] e) {
                h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
                k = aclnn.KlDivBackward <reduction: int = 1, log_target: int = 0> (g, y, x)
                b = aclnn.BinaryCrossEntropyWithLogitsBackward <reduction: int = 1> (g, x, g, w, w)
                e = aclnn.BatchNormElemtBackward (g, x, w, w, w, w, w, w)
            }""",
            DATA | {"y": Y[:1]},
            hardshrink(G, X, 0.25),
            kl_div(G, Y[:1], X),
            bce(G, X, G, W, W),
            batch_norm(G, X, W, W, W, W, W, W),
            imports=f'"" : {opset}, "aclnn" : 1',
            ir_version=ir_version,
        )
        for opset, ir_version in (
            (15, 8),
            (16, 8),
            (17, 8),
            (18, 4),
            (19, 7),
            (20, 9),
            (22, 10),
            (24, 11),
            (NEWEST_OPSET, 13),
        )
    ),
]


def by_id(name: str) -> Case:
    (found,) = [c for c in CASES if c.id == name]
    return found


each_case = pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
