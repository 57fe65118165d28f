"""A session whose state stays bound: two sets of it, read and written in turn."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

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
        passed: the outputs that a run leaves for other sessions.
    """

    def __init__(
        self,
        session: ort.InferenceSession,
        inputs: Sequence[Tensors],
        outputs: Sequence[Tensors],
        returned: Mapping[str, np.dtype],
        passed: Collection[str] = (),
    ) -> None:
        self._session = session
        reads = {value.name for value in session.get_inputs()}
        writes = {value.name for value in session.get_outputs()}
        self._given = reads - inputs[0].keys()
        self._returned = [(name, dtype) for name, dtype in returned.items() if name in writes]
        self._fresh = list(dict.fromkeys([*(name for name, _ in self._returned), *passed]))
        self._passed = {name: self._fresh.index(name) for name in passed}
        self._bindings = []
        for read, written in zip(inputs, outputs, strict=True):
            binding = session.io_binding()
            self._bind_fresh(binding)  # first, so that they come first among the outputs
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
            turn: which of both.
            batch: contiguous arrays of the right dtypes, more than the session has inputs for or not.
            passed: what other sessions have left, by name; what this one leaves is added. It is valid until the next
                run of the session that has left it in the same turn.

        Returns:
            The outputs that are wanted, in memory of their own.
        """
        binding = self._bindings[turn]
        values = []  # alive until the run is done
        for name in self._given:
            if name not in batch:
                binding.bind_ortvalue_input(name, (passed or {})[name])
            elif batch[name].dtype == BFLOAT16:
                values.append(input_value(batch[name], TensorProto.BFLOAT16))
                binding.bind_ortvalue_input(name, values[-1])
            else:
                binding.bind_cpu_input(name, batch[name])
        self._bind_fresh(binding)  # else they would have to be of the last run's shapes
        self._session.run_with_iobinding(binding)
        outputs = binding.get_outputs_as_ortvaluevector()
        if passed is not None:
            passed |= {name: ort.OrtValue(outputs[i]) for name, i in self._passed.items()}
        return {name: output_array(outputs[i], dtype) for i, (name, dtype) in enumerate(self._returned)}

    def _bind_fresh(self, binding: ort.IOBinding) -> None:
        """Let the outputs that are bound to no tensor be made anew."""
        for name in self._fresh:
            binding.bind_output(name)
