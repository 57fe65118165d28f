"""Random calls, bad calls and graphs for `test_fuzz.py`, and the comparison of all backends on them.

A case is made from seed and number alone: `call`, `bad_call` and `graph` give the same one again. What is drawn for a
signature, dtypes, ranks and attributes, is bounded, for each needs sessions of its own; the values are new in every
case.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import backends
import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
from backends import FLOAT64, FLOATS, Array, Backend
from onnx import TensorProto, helper

import onnx_ops
from onnx_ops.ops import OPS
from tests.ops import RECORDS, ctc_loss_backward
from tests.ops._shared import ctc

KL, BCE, CTC = "KlDivBackward", "BinaryCrossEntropyWithLogitsBackward", "CtcLossBackward"
BN, HARDSHRINK = "BatchNormElemtBackward", "HardshrinkBackward"
OP_NAMES = (KL, BCE, CTC, BN, HARDSHRINK)
CASES_PER_SIGNATURE = 25


PORTABLE = (backends.PORTABLE, backends.PORTABLE_AS_WRITTEN, backends.INLINED)


@dataclass(frozen=True)
class Fuzzed:
    """One call.

    extreme: whether factors are of all sizes, so that a function body may lose what is small.
    """

    op: str
    inputs: tuple[Array | None, ...]
    attributes: dict[str, int | float] = field(default_factory=dict)
    extreme: bool = False

    def __str__(self) -> str:
        """Python that makes the call again."""
        lines = [_source(array) for array in self.inputs]
        return f"Fuzzed({self.op!r}, (\n    " + ",\n    ".join(lines) + f",\n), {self.attributes!r}, {self.extreme})"


def _source(array: Array | None) -> str:
    if array is None:
        return "None"
    bits = array.view(np.uint16).tolist() if array.dtype == backends.BFLOAT16 else array.tolist()
    numbers = repr(bits).replace("nan", "np.nan").replace("inf", "np.inf")
    if array.dtype == backends.BFLOAT16:
        return f"np.array({numbers}, np.uint16).reshape({array.shape}).view(ml_dtypes.bfloat16)"
    return f"np.array({numbers}, np.{array.dtype.name}).reshape({array.shape})"


# --- values --------------------------------------------------------------------------------------------------------


def _moderate(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Normal numbers, among them some 0, 1, small ones."""
    values = rng.normal(size=shape) * np.exp2(rng.integers(-3, 3))
    kinds = rng.choice(4, shape, p=[0.85, 0.05, 0.05, 0.05])
    return np.asarray(np.choose(kinds, [values, 0.0, 1.0, -0.5])).astype(dtype)


def _extreme(rng: np.random.Generator, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Array:
    """Numbers of both signs over all exponents, subnormal ones included."""
    limits = ml_dtypes.finfo(dtype)
    low, high = math.log2(float(limits.smallest_subnormal)), math.log2(float(limits.max)) - 0.01
    return np.asarray(
        np.exp2(rng.uniform(low, high, shape)) * rng.choice([-1.0, 1.0, 0.0], shape, p=[0.5, 0.45, 0.05])
    ).astype(dtype)


def _sprinkle(rng: np.random.Generator, array: Array) -> None:
    """Put a NaN or an infinity somewhere."""
    if array.size:
        array[np.unravel_index(rng.integers(array.size), array.shape)] = rng.choice([np.nan, np.inf, -np.inf])


def _into(rng: np.random.Generator, shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """A shape of at most a rank that broadcasts to another."""
    kept = shape[len(shape) - min(rank, len(shape)) :]
    return tuple(1 if rng.random() < 0.3 else d for d in kept)


def _size(rng: np.random.Generator) -> int:
    return int(rng.choice([0, 1, 1, 2, 3, 4, 7], p=[0.04, 0.12, 0.12, 0.2, 0.2, 0.16, 0.16]))


# --- calls ---------------------------------------------------------------------------------------------------------


def call(seed: int, number: int) -> Fuzzed:
    """The call of a number: its signature lasts for some numbers, its values are its own."""
    signature = np.random.default_rng([seed, 1, number // CASES_PER_SIGNATURE])
    values = np.random.default_rng([seed, 2, number])
    op = OP_NAMES[(number // CASES_PER_SIGNATURE) % len(OP_NAMES)]
    return {KL: _kl_div, BCE: _cross_entropy, CTC: _ctc_loss, BN: _batch_norm, HARDSHRINK: _hardshrink}[op](
        signature, values
    )


def _dtypes(signature: np.random.Generator, count: int) -> list[np.dtype[Any]]:
    """One dtype for all, or a mixture."""
    if signature.random() < 0.5:
        return [FLOATS[signature.integers(4)]] * count
    return [FLOATS[i] for i in signature.integers(4, size=count)]


def _numbers(values: np.random.Generator, extreme: bool) -> Callable[..., Array]:
    return lambda shape, dtype: (_extreme if extreme else _moderate)(values, shape, dtype)


def _kl_div(signature: np.random.Generator, values: np.random.Generator) -> Fuzzed:
    dtypes, (rank, other, grad) = _dtypes(signature, 3), signature.integers(0, 5, 3)
    attributes = {"reduction": int(signature.integers(4)), "log_target": int(signature.integers(2))}
    extreme = bool(values.random() < 0.3)
    space = tuple(_size(values) for _ in range(max(rank, other)))
    own, target = (_into(values, space, int(r)) for r in (rank, other))
    if values.random() < 0.4 and rank == other:
        own = target = space
    space = np.broadcast_shapes(own, target)
    extreme = extreme and not (FLOAT64 in dtypes and own != space)  # a sum of terms that double does not hold
    make = _numbers(values, extreme)
    g, x = make(_into(values, space, int(grad)), dtypes[0]), make(own, dtypes[1])
    q = make(target, dtypes[2]) if not attributes["log_target"] else _moderate(values, target, dtypes[2])
    if values.random() < 0.2:
        _sprinkle(values, (g, q)[values.integers(2)])
    return Fuzzed(KL, (g, x, q), attributes, extreme)


def _cross_entropy(signature: np.random.Generator, values: np.random.Generator) -> Fuzzed:
    dtypes, rank, ranks = _dtypes(signature, 5), int(signature.integers(0, 5)), signature.integers(0, 5, 3)
    weighted, pos_weighted = signature.random(2) < 0.5
    extreme = bool(values.random() < 0.4)
    make = _numbers(values, extreme)
    shape = tuple(_size(values) for _ in range(rank))
    g, w, p = (make(_into(values, shape, int(r)), dtypes[i]) for r, i in zip(ranks, (0, 3, 4), strict=True))
    x = np.asarray(_moderate(values, shape, dtypes[1]) * np.array(values.choice([1.0, 8.0, 50.0]), dtypes[1]))
    y = make(shape, dtypes[2]) if extreme else np.asarray(values.random(shape)).astype(dtypes[2])
    if not extreme and values.random() < 0.2:  # one: what two infinities give depends on how the formula is written
        _sprinkle(values, (x, y, p)[values.integers(3 if pos_weighted else 2)])
    inputs = [g, x, y, w if weighted else None, p if pos_weighted else None]
    while inputs[-1] is None and signature.random() < 0.7:
        inputs.pop()
    return Fuzzed(BCE, tuple(inputs), {"reduction": int(signature.integers(3))}, extreme)


def _batch_norm(signature: np.random.Generator, values: np.random.Generator) -> Fuzzed:
    dtypes, rank = _dtypes(signature, 7), int(signature.integers(2, 5))
    shape = tuple(max(_size(values), int(axis == 1)) for axis in range(rank))
    channels = (shape[1],)
    g, x = (_moderate(values, shape, dtype) for dtype in dtypes[:2])
    mean, invstd, weight, sum_dy, sum_dy_xmu = (_moderate(values, channels, dtype) for dtype in dtypes[2:])
    kinds = (np.dtype(np.int32), backends.FLOAT16, backends.BFLOAT16, backends.FLOAT32)
    counter = values.integers(1, 9, (int(values.integers(1, 4)),)).astype(kinds[signature.integers(4)])
    if values.random() < 0.2:
        _sprinkle(values, g)
    return Fuzzed(BN, (g, x, mean, invstd, weight if signature.random() < 0.5 else None, sum_dy, sum_dy_xmu, counter))


def _hardshrink(signature: np.random.Generator, values: np.random.Generator) -> Fuzzed:
    dtypes, ranks = _dtypes(signature, 2), signature.integers(0, 5, 2)
    space = tuple(_size(values) for _ in range(max(ranks)))
    make = _numbers(values, bool(values.random() < 0.5))
    g, x = (make(_into(values, space, int(r)), dtype) for r, dtype in zip(ranks, dtypes, strict=True))
    for array in (g, x):
        if values.random() < 0.2:
            _sprinkle(values, array)
    return Fuzzed(
        HARDSHRINK, (g, x), {"lambd": float(np.float32(signature.choice([0.5, 0.0, -1.0, 1e-7, 0.123456789])))}
    )


def _ctc_loss(signature: np.random.Generator, values: np.random.Generator) -> Fuzzed:
    """Sequences of forward variables as a forward pass makes them, or of any numbers."""
    dtype, padded = FLOATS[signature.integers(4)], bool(signature.random() < 0.5)
    wide = dtype if signature.random() < 0.5 and dtype.itemsize > 2 else FLOAT64
    steps, batch, classes = int(values.integers(1, 9)), int(values.integers(1, 4)), int(values.integers(1, 5))
    blank = int(signature.integers(2)) % classes
    lengths, labels = values.integers(0, steps + 1, batch), values.integers(0, 4, batch)
    kind = (np.int64, np.int32)[signature.integers(2)]
    targets = values.integers(0, classes, (batch, 3)).astype(kind)
    flat = np.concatenate([row[:n] for row, n in zip(targets, labels, strict=True)])
    logits = values.normal(size=(steps, batch, classes)) * 2
    log_probs = (logits - np.logaddexp.reduce(logits, axis=2, keepdims=True)).astype(dtype)
    if values.random() < 0.2:
        log_probs[values.random(log_probs.shape) < 0.2] = -np.inf
    given = (targets if padded else flat, lengths, labels)
    loss, alpha = ctc.forward(log_probs, *given, blank)
    if values.random() < 0.4:
        loss = values.normal(size=loss.shape) * 3
        alpha = values.normal(size=alpha.shape) * 3
        alpha[values.random(alpha.shape) < 0.2] = -np.inf
    if values.random() < 0.1:
        _sprinkle(values, loss)
    attributes = {"blank": blank} | {n: int(signature.integers(2)) for n in ("zero_infinity", "through_log_softmax")}
    g = _moderate(values, (batch,), dtype)
    return Fuzzed(CTC, (g, log_probs, *given, loss.astype(wide), alpha.astype(wide)), attributes)


# --- what is wrong with a result -----------------------------------------------------------------------------------


def problem(backend: Backend, case: Fuzzed) -> str | None:
    """The first error of a backend on a call; None if there is none."""
    try:
        if case.extreme and backend.portable:
            return _loose_problem(backend, case)
        slack = _ctc_slack(case) if case.op == CTC else None
        backends.check(backend, case.op, case.inputs, case.attributes, slack=slack)
    except BaseException as error:  # of a failed check or of a backend; pytest.fail raises no Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
        return f"{backend}: {type(error).__name__}: {error}"
    return None


def _ctc_slack(case: Fuzzed) -> float:
    """What is allowed, by the largest number that goes in or comes out: a made-up loss makes gradients of any size."""
    with np.errstate(all="ignore"):
        sizes = np.abs(ctc_loss_backward.oracle(*case.inputs, **case.attributes))  # type: ignore[arg-type]
    grad = np.abs(np.asarray(case.inputs[0], np.float64))
    largest = max(1.0, float(grad.max(initial=0)), float(sizes.max(initial=0, where=np.isfinite(sizes))))
    return largest * (1e-12 if _result_dtype(case) == FLOAT64 else 1e-9)


def _result_dtype(case: Fuzzed) -> np.dtype[Any]:
    record = RECORDS[case.op]
    (output,) = record.outputs
    return record.output_dtype(backends.call_of(case.op, case.inputs), output)


def _loose_problem(backend: Backend, case: Fuzzed) -> str | None:
    """Of a function body where factors are extreme: what is clear and fits is finite, and has its sign; NaN is NaN."""
    actual = backend(case.op, case.inputs, case.attributes).astype(np.float64)
    if any(a is not None and a.dtype == FLOAT64 for a in case.inputs):
        return None  # double has nothing wider
    call, record = backends.call_of(case.op, case.inputs, case.attributes), RECORDS[case.op]
    (output,) = record.outputs
    expected = record.expected(call)[output]
    largest = record.largest_terms(call).get(output, np.abs(expected))
    with np.errstate(all="ignore"):
        dtype = _result_dtype(case)
        fits = np.isfinite((expected * (1 + 2.0**-8)).astype(dtype)) & (largest < 1e38)
        clear = fits & (np.abs(expected) > 1e-3 * largest) & (np.abs(expected) > 1e-30) & (actual != 0)
        if case.op == BCE:  # beyond, a sigmoid is below the smallest normal number, and may count as 0
            clear &= np.abs(np.asarray(case.inputs[1], np.float64)) < 87
        wrong = (fits & ~np.isfinite(actual)) | (clear & (np.signbit(actual) != np.signbit(expected)))
        wrong |= np.isnan(expected) & ~np.isnan(actual)
    if not wrong.any():
        return None
    place = np.unravel_index(int(wrong.argmax()), wrong.shape)
    return f"{backend}: {actual[place]!r} at {place}, where {expected[place]!r} fits"


def problems_of_call(call: backends.Call, chosen: Sequence[Backend] = (*backends.CAREFUL, *PORTABLE)) -> list[str]:
    """The errors of the backends on a call of a record, by the record's limits."""
    found = []
    for backend in chosen:
        try:
            backends.check_call(backend, call)
        except BaseException as error:  # as in `problem`
            if isinstance(error, KeyboardInterrupt | SystemExit):
                raise
            found.append(f"{backend}: {type(error).__name__}: {error}")
    return found


def problems(case: Fuzzed, chosen: Sequence[Backend] = (*backends.CAREFUL, *PORTABLE)) -> list[str]:
    """The errors of the backends on a call."""
    return [found for backend in chosen if (found := problem(backend, case))]


def smallest(case: Fuzzed, chosen: Sequence[Backend]) -> Fuzzed:
    """A smaller call of an elementwise op on which a backend is still wrong: one element, if that does."""
    if case.op not in (KL, BCE, HARDSHRINK):
        return case
    shapes = [a.shape for a in case.inputs if a is not None]
    space = np.broadcast_shapes(*shapes)
    for index in itertools.islice(np.ndindex(space), 500):
        inputs = tuple(None if a is None else np.broadcast_to(a, space)[index].reshape(1) for a in case.inputs)
        single = Fuzzed(case.op, inputs, case.attributes, case.extreme)
        if problems(single, chosen):
            return single
    return case


# --- bad calls -----------------------------------------------------------------------------------------------------


def bad_call(seed: int, number: int) -> tuple[Fuzzed, Fuzzed]:
    """A call that an op computes, and one that is wrong in one thing that only its values or shapes tell."""
    rng = np.random.default_rng([seed, 3, number])
    for tried in itertools.count(number * 7):
        good = call(seed, tried)
        inputs = list(good.inputs)
        place = int(rng.choice([i for i, a in enumerate(inputs) if a is not None]))
        array = inputs[place]
        assert array is not None
        if array.dtype.kind in "iu" and rng.random() < 0.5:
            inputs[place] = array + np.array(rng.choice([-50, 50, 10**9]), array.dtype)
        elif array.ndim:
            inputs[place] = np.concatenate([array] * int(rng.integers(2, 4)), int(rng.integers(array.ndim)))
        bad = Fuzzed(good.op, tuple(inputs), good.attributes)
        try:
            OPS[good.op].check_arrays(bad.inputs, bad.attributes)
        except onnx_ops.OpError:
            return good, bad
    raise AssertionError("count has no end")


def refusal(backend: Backend, case: Fuzzed) -> str | None:
    """The error with which a backend refuses a call; None if it computes it."""
    try:
        backend(case.op, case.inputs, case.attributes)
    except Exception as error:  # onnxruntime's are of many classes
        return str(error)
    return None


# --- graphs --------------------------------------------------------------------------------------------------------

LEAVES = ("grad", "logits", "labels", "weight")


def _chain(rng: np.random.Generator, first: str, mark: str, attribute: str | None = None) -> list[onnx.NodeProto]:
    """A few nodes, each of which takes the result of the one before; the last result is `{mark}out`."""
    nodes, value, count = [], first, int(rng.integers(1, 4))
    for i in range(count):
        out = f"{mark}out" if i == count - 1 else f"{mark}{i}"
        op = (KL, BCE, HARDSHRINK)[rng.integers(3)]
        if op == HARDSHRINK:
            inputs, attributes = ["labels", value], {"lambd": float(rng.choice([0.0, 0.25]))}
        elif op == KL:
            inputs, attributes = ["grad", value, "labels"], {"reduction": int(rng.integers(4))}
        else:
            optional = [[], ["weight"], ["", "weight"], ["weight", "weight"]][rng.integers(4)]
            inputs, attributes = ["grad", value, "labels", *optional], {"reduction": int(rng.integers(3))}
        node = helper.make_node(op, inputs, [out], domain=onnx_ops.DOMAIN, name=["", f"{mark}node{i}"][rng.integers(2)])
        for name, given in attributes.items():
            if name == "reduction" and attribute and rng.random() < 0.5:
                node.attribute.add(name=name, type=onnx.AttributeProto.INT, ref_attr_name=attribute)
            elif rng.random() < 0.8:
                node.attribute.append(helper.make_attribute(name, given))
        nodes.append(node)
        value = out
    return nodes


def graph(seed: int, number: int) -> tuple[onnx.ModelProto, dict[str, Array]]:
    """A model of several nodes, in the graph, a function, or a subgraph, and inputs for it."""
    rng = np.random.default_rng([seed, 4, number])
    dtype = (backends.FLOAT32, FLOAT64)[rng.integers(2)]
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    dims = (("N", "C"), (3, 4), (None, None))[rng.integers(3)]

    def typed(name: str) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, [] if name == "grad" else dims)

    nodes, functions = _chain(rng, "logits", "a_"), []
    form = ("plain", "function", "if", "loop", "scan")[number % 5]
    if form == "function":
        inner = _chain(rng, "value", "f_", "how")
        imports = [helper.make_opsetid("", 21), onnx_ops.opset_import()]
        names = ["value", "grad", "labels", "weight"]
        function = helper.make_function("fuzz", "Inner", names, ["f_out"], inner, imports, attributes=["how"])
        functions.append(function)
        for i, reduction in enumerate(rng.integers(3, size=2)):
            source, out = (("a_out", "b_0"), ("b_0", "out"))[i]
            nodes.append(helper.make_node("Inner", [source, *names[1:]], [out], domain="fuzz", how=int(reduction)))
    elif form == "if":
        branches = {}
        for name in ("then", "else"):
            inner = _chain(rng, "a_out", f"{name}_")
            out = [helper.make_tensor_value_info(f"{name}_out", kind, None)]
            branches[f"{name}_branch"] = helper.make_graph(inner, name, [], out)
        nodes.append(
            helper.make_node(
                "Constant", [], ["chosen"], value=helper.make_tensor("", TensorProto.BOOL, [], [bool(rng.integers(2))])
            )
        )
        nodes.append(helper.make_node("If", ["chosen"], ["out"], **branches))
    elif form == "loop":
        inner = [*_chain(rng, "carried", "l_"), helper.make_node("Identity", ["going"], ["still"])]
        scalar = [
            helper.make_tensor_value_info(n, t, [])
            for n, t in (("trip", TensorProto.INT64), ("going", TensorProto.BOOL))
        ]
        outs = [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("l_out", kind, None),
        ]
        body = helper.make_graph(inner, "loop", [*scalar, helper.make_tensor_value_info("carried", kind, None)], outs)
        nodes.append(helper.make_node("Constant", [], ["trips"], value_int=2))
        nodes.append(helper.make_node("Loop", ["trips", "", "a_out"], ["out"], body=body))
    elif form == "scan":
        inner = [*_chain(rng, "state", "s_"), helper.make_node("Add", ["s_out", "row"], ["next"])]
        ins = [
            helper.make_tensor_value_info("state", kind, dims),
            helper.make_tensor_value_info("row", kind, [dims[1]]),
        ]
        body = helper.make_graph(inner, "scan", ins, [helper.make_tensor_value_info("next", kind, dims)])
        nodes.append(helper.make_node("Scan", ["a_out", "logits"], ["out"], body=body, num_scan_inputs=1))
    else:
        nodes.append(helper.make_node("Add", ["a_out", "logits"], ["out"]))
    made = helper.make_graph(
        nodes, form, [typed(n) for n in LEAVES], [helper.make_tensor_value_info("out", kind, dims)]
    )
    domains = [helper.make_opsetid("", 21), onnx_ops.opset_import(), helper.make_opsetid("fuzz", 1)]
    model = helper.make_model(made, opset_imports=domains, functions=functions, ir_version=10)
    feeds = {name: (rng.random((3, 4)) + 0.1).astype(dtype) for name in LEAVES}
    return model, feeds | {"grad": np.array(1.5, dtype)}


def graph_results(model: onnx.ModelProto, feeds: dict[str, Array]) -> dict[str, Array]:
    """What a model gives with the kernels, on the function bodies, and inlined."""
    linked, inlined = (made(model).SerializeToString() for made in (onnx_ops.link, onnx_ops.inline))
    sessions = {
        **{str(backend): backends.session_with_kernels(backend, model) for backend in backends.WITH_KERNELS},
        "portable": ort.InferenceSession(linked, backends.options()),
        "portable_unoptimised": ort.InferenceSession(linked, backends.options(optimise=False)),
        "inlined": ort.InferenceSession(inlined, backends.options()),
    }
    return {name: session.run(None, feeds)[0] for name, session in sessions.items()}
