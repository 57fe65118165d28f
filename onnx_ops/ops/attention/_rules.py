"""Shapes and attributes of attention."""

from __future__ import annotations

from onnx import TensorProto
from onnx.defs import OpSchema

from onnx_ops.core.call import Call
from onnx_ops.core.schema import attribute
from onnx_ops.core.types import Dim, Shape

BNSD, BSND = 0, 1
LAYOUTS = {BNSD: "BNSD", BSND: "BSND"}
ALL_KEYS, LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL = 0, 2, 3
MODES = {ALL_KEYS: "all keys", LEFT_UP_CAUSAL: "left-up causal", RIGHT_DOWN_CAUSAL: "right-down causal"}
SCALED_BEFORE, SCALED_AFTER = 0, 1
SHIFTS = {SCALED_BEFORE: "multiply, then add", SCALED_AFTER: "add, then multiply"}
RANK = 4


def attention_attributes() -> list[OpSchema.Attribute]:
    """The attributes of attention and of its gradient."""
    return [
        attribute("scale_value", 1.0, "Factor of the scores."),
        attribute("keep_prob", 1.0, "Probability with which dropout has kept a weight, in (0, 1]."),
        attribute("input_layout", BNSD, "Axes of queries, keys and values: 0 BNSD, 1 BSND."),
        attribute("sparse_mode", ALL_KEYS, "Which keys a query sees: 0 all, 2 left-up causal, 3 right-down causal."),
        attribute("pse_type", SCALED_AFTER, "Whether the shift is added 0 after or 1 before the scores are scaled."),
    ]


def axes_of(call: Call) -> tuple[int, int]:
    """The axes of heads and of positions."""
    return (2, 1) if call.attributes["input_layout"] == BSND else (1, 2)


def check_attention(call: Call, key_name: str, shift: str) -> tuple[Shape | None, Shape | None]:
    """Raise OpError for attributes and shapes that do not fit.

    Args:
        key_name: name of the input with the keys.
        shift: name of the input that is added to the scores.

    Returns:
        The shapes of the result and of its statistics, (B, N, Sq).
    """
    call.check_choice("input_layout", LAYOUTS)
    call.check_choice("sparse_mode", MODES)
    call.check_choice("pse_type", SHIFTS)
    keep = call.attributes["keep_prob"]
    if not 0 < keep <= 1:
        raise call.error(f"attribute 'keep_prob' is {keep}, expected a number above 0, at most 1")
    for name in ("query", key_name, "value"):
        shape = call.shape(name)
        if shape is not None and len(shape) != RANK:
            layout = LAYOUTS[call.attributes["input_layout"]]
            raise call.shape_error(name, f"{RANK} dimensions, {', '.join(layout)}")
    head, place = axes_of(call)
    query, key, value = (call.shape(name) or (None,) * RANK for name in ("query", key_name, "value"))
    _equal(call, key_name, 0, query[0], "samples of 'query'")
    _equal(call, key_name, 3, query[3], "numbers per head of 'query'")
    for axis, what in ((0, "samples"), (head, "heads"), (place, "positions")):
        _equal(call, "value", axis, key[axis], f"{what} of '{key_name}'")
    _equal(call, "value", 0, query[0], "samples of 'query'")
    if call.shape(key_name) is not None and 0 in (key[place], key[3]):
        raise call.shape_error(key_name, "at least one key, of at least one number")
    heads, own = query[head], key[head]
    if isinstance(own, int) and isinstance(heads, int) and (heads % own if own else heads):
        raise call.shape_error(key_name, f"a divisor of the {heads} heads of 'query' (axis {head})")
    whole = (query[0], heads, query[place], key[place] if key[place] is not None else value[place])
    for name in (shift, "drop_mask", "atten_mask"):
        if call.present(name):
            call.broadcast_to(name, whole, "samples, heads, queries and keys")
    if call.shape("query") is None:
        return None, None
    sizes: list[Dim] = [*query[:3], value[3]]
    return tuple(sizes), whole[:3]


def statistics_dtype(call: Call) -> int | None:
    """The dtype of the statistics of the scores: that of the computation."""
    dtype = call.dtype("query")
    return dtype if dtype in (None, TensorProto.DOUBLE) else TensorProto.FLOAT


def _equal(call: Call, name: str, axis: int, size: Dim, what: str) -> None:
    shape = call.shape(name)
    if shape is not None and isinstance(size, int) and isinstance(shape[axis], int) and shape[axis] != size:
        raise call.shape_error(name, f"{size} at axis {axis}, the {what}")
