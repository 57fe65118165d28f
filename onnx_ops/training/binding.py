"""A session whose state stays bound: two sets of it, read and written in turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnxruntime as ort
from onnx import TensorProto

from onnx_ops.training.values import BFLOAT16, Tensor, input_value, output_array

Tensors = Mapping[str, Tensor]


class BoundSession:
    """Runs a session with inputs and outputs that are bound once, for two turns.

    Args:
        session: what is run.
        inputs: for each of both turns the tensors of inputs, by name. Of those that the session has no input for, none
            is bound; inputs that are not among them are given at each run.
        outputs: for each of both turns the tensors that outputs are written to, in the same way.
        returned: the outputs that a run returns, each with its dtype.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Sequence[Tensors],
        outputs: Sequence[Tensors],
        returned: Mapping[str, np.dtype],
    ) -> None:
        self._session = session
        reads = {value.name for value in session.get_inputs()}
        writes = {value.name for value in session.get_outputs()}
        self._given = reads - inputs[0].keys()
        self._returned = [(name, dtype) for name, dtype in returned.items() if name in writes]
        self._bindings = []
        for read, written in zip(inputs, outputs, strict=True):
            binding = session.io_binding()
            self._bind_returned(binding)  # first, so that they come first among the outputs
            for name in reads & read.keys():
                binding.bind_ortvalue_input(name, read[name].value)
            for name in writes & written.keys():
                binding.bind_ortvalue_output(name, written[name].value)
            self._bindings.append(binding)

    def run(self, turn: int, batch: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Run the session on contiguous arrays of the right dtypes, more than it has inputs for or not."""
        binding = self._bindings[turn]
        values = []  # alive until the run is done
        for name, array in batch.items():
            if name not in self._given:
                continue
            if array.dtype == BFLOAT16:
                values.append(input_value(array, TensorProto.BFLOAT16))
                binding.bind_ortvalue_input(name, values[-1])
            else:
                binding.bind_cpu_input(name, array)
        self._bind_returned(binding)  # else they would have to be of the last run's shapes
        self._session.run_with_iobinding(binding)
        outputs = binding.get_outputs_as_ortvaluevector()
        return {name: output_array(outputs[i], dtype) for i, (name, dtype) in enumerate(self._returned)}

    def _bind_returned(self, binding: ort.IOBinding) -> None:
        for name, _ in self._returned:
            binding.bind_output(name)
