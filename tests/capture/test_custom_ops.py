"""Every op of the domain is an operator of PyTorch: its results, its FakeTensors and its schema."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sympy
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental import _config
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from onnx_ops.core.errors import OpError
from onnx_ops.core.op import Op
from onnx_ops.ops import OPS
from onnx_ops.torch.base.arrays import to_array, to_tensor
from onnx_ops.torch.base.custom_ops import domain_ops

each_op = pytest.mark.parametrize("op", OPS.values(), ids=lambda op: op.name)
DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def inputs_of(op: Op, dtype: torch.dtype = torch.float32) -> list[Tensor | None]:
    """The inputs of the op's example, floating ones in a dtype; None for omitted ones."""
    arrays = op.example_arrays(to_array(torch.empty(0, dtype=dtype)).dtype)
    given = {name: to_tensor(array) for name, array in arrays.items()}
    return [given.get(name) for name in op.input_names]


def outputs_of(op: Op, tensors: list[Tensor | None]) -> tuple[Tensor | None, ...]:
    found = getattr(domain_ops, op.name)(*tensors, **op.example.attributes)
    return found if isinstance(found, tuple) else (found,)


def omissions(op: Op) -> list[list[Tensor | None]]:
    """The inputs of the example, with and without the optional ones."""
    tensors = inputs_of(op)
    required = [t if given.default is None else None for given, t in zip(op.signature.inputs, tensors, strict=True)]
    return [tensors, required]


@each_op
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_results_are_those_of_the_reference(op: Op, dtype: torch.dtype) -> None:
    tensors = inputs_of(op, dtype)
    arrays = [None if t is None else to_array(t) for t in tensors]
    wanted = op.compute(arrays, **op.example.attributes)
    for got, array in zip(outputs_of(op, tensors), wanted, strict=True):
        assert (got is None) == (array is None)
        if got is not None and array is not None:
            assert to_array(got).dtype == array.dtype
            np.testing.assert_array_equal(to_array(got), array)


def symbolic(mode: FakeTensorMode, tensor: Tensor) -> Tensor:
    """A FakeTensor all of whose sizes are dynamic."""
    context: Any = StatelessSymbolicContext(dynamic_sizes=[DimDynamic.DYNAMIC] * tensor.dim())
    return mode.from_tensor(tensor, symbolic_context=context)


@each_op
@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_fake_tensors_agree_with_results(op: Op, dynamic: bool) -> None:
    """Dynamic sizes are those of the inputs, or new ones; a trace assumes nothing of them but that some are equal."""
    for tensors in omissions(op):
        shapes = ShapeEnv(duck_shape=False) if dynamic else None
        mode = FakeTensorMode(shape_env=shapes)
        with _config.patch(backed_size_oblivious=True), mode:
            fakes = [t if t is None else symbolic(mode, t) if dynamic else mode.from_tensor(t) for t in tensors]
            found = outputs_of(op, fakes)
        for fake, result in zip(found, outputs_of(op, tensors), strict=True):
            assert (fake is None) == (result is None)
            if fake is not None and result is not None:
                assert fake.dtype is result.dtype
                assert fake.dim() == result.dim()
                for size, actual in zip(fake.shape, result.shape, strict=True):
                    hint = size if isinstance(size, int) else size.node.hint
                    assert hint == actual or (dynamic and hint is None)
        assert shapes is None or all(isinstance(guard.expr, sympy.Eq) for guard in shapes.guards)


@each_op
def test_schemas_are_those_of_functions_of_the_inputs(op: Op) -> None:
    """As PyTorch checks them: nothing is written to, no output is an input, and FakeTensors are those of results."""
    for tensors in omissions(op):
        checks = ("test_schema", "test_faketensor")
        torch.library.opcheck(
            getattr(domain_ops, op.name).default, tuple(tensors), dict(op.example.attributes), test_utils=checks
        )


def test_what_the_op_refuses_is_refused() -> None:
    targets, lengths = torch.tensor([[7]]), torch.tensor([1])
    with pytest.raises(OpError, match="input 'targets' has 7 in sample 0"):
        domain_ops.CtcLoss(torch.zeros(2, 1, 3), targets, torch.tensor([2]), lengths)
    with pytest.raises(OpError, match="input 'target' has shape"):
        domain_ops.KlDiv(torch.zeros(2), torch.zeros(3))


def test_sizes_of_inputs_that_broadcast_are_one() -> None:
    """As for PyTorch's operators: which of two dynamic sizes the result has must not be left open."""
    shapes = ShapeEnv(duck_shape=False)
    mode, examples = FakeTensorMode(shape_env=shapes), (torch.zeros(4, 3), torch.zeros(4, 3))
    with _config.patch(backed_size_oblivious=True), mode:
        first, second = (symbolic(mode, example) for example in examples)
        assert first.shape[0].node.expr != second.shape[0].node.expr
        found = domain_ops.KlDiv(first, second, reduction=0)
        assert first.shape[0].node.expr == second.shape[0].node.expr == found.shape[0].node.expr
