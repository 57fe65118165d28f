"""Function bodies of DynamicRNN and its gradient for states of a wrong shape, which models that tell none let pass."""

from __future__ import annotations

import backends
import numpy as np
import onnxruntime as ort
import pytest

import onnx_ops
from models.single_op import single_op_model
from onnx_ops.ops import OPS
from tests.ops import RECORDS

STATES = {"DynamicRNN": ("init_h", "init_c"), "DynamicRNNGrad": ("grad_last_h", "grad_last_c", "init_c")}


@pytest.mark.parametrize(("op", "name"), [(op, name) for op, names in STATES.items() for name in names])
def test_a_state_with_another_number_of_axes_is_an_error(op: str, name: str) -> None:
    """onnxruntime ends the process for a state of Scan with more axes than the result of a step."""
    good = RECORDS[op].plain.given
    model = single_op_model(
        op, [(a.dtype, None) if (a := good.get(n)) is not None else None for n in OPS[op].input_names]
    )
    session = ort.InferenceSession(onnx_ops.link(model).SerializeToString(), backends.options())
    expected = backends.run_outputs(session, good)
    for shape in ((*good[name].shape, 2), (2, *good[name].shape), good[name].shape[1:]):
        with pytest.raises(Exception, match="Non-zero status code"):
            session.run(None, good | {name: np.zeros(shape, np.float32)})
    for output, array in backends.run_outputs(session, good).items():
        backends.assert_same_bits(array, expected[output])
