"""A captured graph in onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort

from onnx_ops.core.types import TensorType
from onnx_ops.integrations.sessions import InferenceSession, OwnOptions
from onnx_ops.integrations.values import BFLOAT16, input_value, output_array
from onnx_ops.torch.base.arrays import as_array
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.tracing.program import Tensors
from onnx_ops.training.arrays import numpy_dtype

Arrays = dict[str, np.ndarray]


class Graph:
    """A captured graph in onnxruntime.

    Args:
        model: the graph.
        optimized: whether onnxruntime optimizes it, which rounds some factors of float64 numbers to float32.

    Attributes:
        inputs: the names of its inputs.

    Raises:
        CaptureError: onnxruntime cannot create the session.
    """

    def __init__(self, model: onnx.ModelProto, *, optimized: bool = True) -> None:
        options = OwnOptions()
        options.log_severity_level = 4  # errors are raised
        options.enable_cpu_mem_arena = False  # which would keep the memory of the outputs
        if not optimized:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        self._types = {v.name: TensorType.of_proto(v.type) for v in (*model.graph.input, *model.graph.output)}
        try:
            self._session = InferenceSession(model, options)
        except Exception as error:  # onnxruntime's errors have no common class
            raise _not_run(error) from error
        self.inputs = [value.name for value in self._session.get_inputs()]

    def run(self, values: Tensors) -> Arrays:
        """The outputs for these inputs, by name; further values are ignored. CaptureError if onnxruntime fails.

        They may be in the memory of inputs or of the session.
        """
        try:
            feeds = {name: input_value(as_array(values[name]), self._types[name].dtype or 0) for name in self.inputs}
            names = [value.name for value in self._session.get_outputs()]
            results = self._session.run_with_ort_values(names, feeds)
            return {
                name: output_array(result, BFLOAT16) if numpy_dtype(self._types[name]) == BFLOAT16 else result.numpy()
                for name, result in zip(names, results, strict=True)
            }
        except Exception as error:
            raise _not_run(error) from error


def _not_run(error: Exception) -> CaptureError:
    return CaptureError(f"onnxruntime does not run the captured graph: {error}")


def arrays(tensors: Tensors) -> Arrays:
    """Tensors as arrays, in their memory where they are contiguous."""
    return {name: as_array(tensor) for name, tensor in tensors.items()}
