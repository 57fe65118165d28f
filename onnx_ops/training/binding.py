"""Tensors in onnxruntime's memory, and sessions with inputs and outputs bound to them."""

from __future__ import annotations

import math
import mmap
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.core.types import TensorType
from onnx_ops.graph.stored import Source, copy_into_zeros
from onnx_ops.integrations.severity import FATAL
from onnx_ops.integrations.values import BFLOAT16, input_value, output_array
from onnx_ops.training.arrays import numpy_dtype

LARGE = 1 << 16
"""Bytes from which on a tensor has pages of its own."""


@dataclass(frozen=True)
class Tensor:
    """A tensor of a training's state.

    Attributes:
        value: the OrtValue, as sessions take it.
        array: its memory.
    """

    value: ort.OrtValue
    array: np.ndarray

    @classmethod
    def holding(cls, source: Source, element: int) -> Tensor:
        """A copy of an array, or of a tensor in a file; `element` is its TensorProto.DataType.

        Pages of zeros, such as those of moments before the first step, take no memory until they are written.
        """
        array = _zeros(source.shape, source.dtype)
        copy_into_zeros(array, source)
        return cls(input_value(array, element), array)

    @classmethod
    def zeros(cls, tensor: TensorType) -> Tensor:
        """A tensor of zeros, of a type whose shape is known."""
        shape = [size for size in tensor.shape or () if isinstance(size, int)]
        return cls.holding(np.zeros(shape, numpy_dtype(tensor)), tensor.dtype or 0)

    def part(self, elements: slice, shape: Sequence[int]) -> Tensor:
        """A view of some elements of a tensor of rank 1, as a tensor of a shape."""
        array = self.array[elements].reshape(shape)
        return Tensor(ort.OrtValue.ortvalue_from_numpy(array), array)


Tensors = Mapping[str, Tensor]
Arrays = dict[str, np.ndarray]


def _zeros(shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """An array of zeros; a large one in pages of its own, which take no memory until they are written."""
    count = math.prod(shape)
    if count * dtype.itemsize < LARGE or not hasattr(mmap, "MAP_PRIVATE"):
        return np.zeros(shape, dtype)
    pages = mmap.mmap(-1, count * dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype, count).reshape(shape)


class BoundSession:
    """Runs a session whose inputs and outputs are bound once, to two sets of tensors that alternate.

    Args:
        session: the session.
        inputs: for each turn, 0 and 1, the tensors of inputs, by name. Names that are no input of the session are
            ignored; the session's other inputs are passed at each run.
        outputs: for each turn the tensors that outputs are written to, likewise.
        returned: the outputs that a run returns, each with its dtype.
        passed: the outputs that a run passes to other sessions.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Sequence[Tensors],
        outputs: Sequence[Tensors],
        returned: Mapping[str, np.dtype],
        passed: Collection[str] = (),
    ) -> None:
        self._session, self._options = session, ort.RunOptions()
        self._options.log_severity_level = FATAL  # a node that fails may be how a step is refused
        reads = {value.name for value in session.get_inputs()}
        writes = {value.name for value in session.get_outputs()}
        self._unbound = reads - inputs[0].keys()
        self._returned = [(name, dtype) for name, dtype in returned.items() if name in writes]
        self._allocated = list(dict.fromkeys([*(name for name, _ in self._returned), *passed]))
        self._passed = {name: self._allocated.index(name) for name in passed}
        self._bindings = []
        for read, written in zip(inputs, outputs, strict=True):
            binding = session.io_binding()
            self._bind_allocated(binding)  # first, so that they come first among the outputs
            for name in reads & read.keys():
                binding.bind_ortvalue_input(name, read[name].value)
            for name in writes & written.keys():
                binding.bind_ortvalue_output(name, written[name].value)
            self._bindings.append(binding)

    def run(
        self, turn: int, batch: Mapping[str, np.ndarray], passed: dict[str, ort.OrtValue] | None = None
    ) -> dict[str, np.ndarray]:
        """Run the session.

        Args:
            turn: 0 or 1.
            batch: contiguous arrays of the dtypes of the inputs; names that are no input of the session are ignored.
            passed: values from other sessions, by name; those that this session passes are added. They are valid until
                the next run of the session that computed them in the same turn.

        Returns:
            Copies of the outputs in `returned`.
        """
        binding = self._bindings[turn]
        values = []  # alive until the run is done
        for name in self._unbound:
            if name not in batch:
                binding.bind_ortvalue_input(name, (passed or {})[name])
            elif batch[name].dtype == BFLOAT16:
                values.append(input_value(batch[name], TensorProto.BFLOAT16))
                binding.bind_ortvalue_input(name, values[-1])
            else:
                binding.bind_cpu_input(name, batch[name])
        self._bind_allocated(binding)  # again, as their shapes may differ from those of the last run
        self._session.run_with_iobinding(binding, self._options)
        outputs = binding.get_outputs_as_ortvaluevector()
        if passed is not None:
            passed |= {name: ort.OrtValue(outputs[i]) for name, i in self._passed.items()}
        return {name: output_array(outputs[i], dtype) for i, (name, dtype) in enumerate(self._returned)}

    def _bind_allocated(self, binding: ort.IOBinding) -> None:
        """Let onnxruntime allocate the outputs that are bound to no tensor."""
        for name in self._allocated:
            binding.bind_output(name)
