"""What the measuring scripts share: an op with its inputs, the sessions and torch calls that compute it, the machine.

torch is compared with where it is installed; nothing here needs it.
"""

import argparse
import functools
import importlib
import importlib.metadata
import importlib.util
import json
import os
import platform
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime as ort
from numpy.typing import DTypeLike
from onnx import ModelProto, helper

import onnx_ops
from models import ctc
from models.single_op import onnx_element_type, single_op_model

torch: Any = importlib.import_module("torch") if importlib.util.find_spec("torch") else None

DTYPES: Mapping[str, np.dtype[Any]] = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
# Inputs whose values the op never looks at.
UNREAD = {("KlDivBackward", "self")}
ALIGNMENT = 64


@dataclass(frozen=True)
class Case:
    """One op on one set of inputs, in the order of its schema; None for an optional input that is left out."""

    op_type: str
    inputs: Sequence[np.ndarray | None]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    note: str = ""

    @property
    def title(self) -> str:
        return f"{self.op_type} {self.note}".rstrip()

    @functools.cached_property
    def model(self) -> ModelProto:
        """The op alone in a graph."""
        types = [None if value is None else (value.dtype, value.shape) for value in self.inputs]
        return single_op_model(self.op_type, types, self.attributes)

    @functools.cached_property
    def feeds(self) -> dict[str, np.ndarray]:
        """The inputs by name."""
        names = onnx_ops.OPS[self.op_type].input_names
        return {name: value for name, value in zip(names, self.inputs, strict=False) if value is not None}

    @property
    def bytes_moved(self) -> int:
        """Bytes of every input that is read and of the output; what is broadcast from one number counts nothing."""
        read = [v.nbytes for name, v in self.feeds.items() if v.size > 1 and (self.op_type, name) not in UNREAD]
        return sum(read) + self.empty_output().nbytes

    def empty_output(self) -> np.ndarray:
        """Memory for the result."""
        output = self.model.graph.output[0].type.tensor_type
        shape = tuple(dimension.dim_value for dimension in output.shape.dim)
        return aligned(shape, helper.tensor_dtype_to_np_dtype(output.elem_type))


def aligned(shape: tuple[int, ...], dtype: DTypeLike) -> np.ndarray:
    """Memory for an array, aligned as onnxruntime and torch align theirs."""
    size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)


def aligned_copy(array: np.ndarray, dtype: DTypeLike) -> np.ndarray:
    """The array in `dtype`, in aligned memory."""
    copy = aligned(array.shape, dtype)
    copy[...] = array
    return copy


def ctc_case(
    steps: int, batch: int, classes: int, labels: int, dtype: DTypeLike, rng: np.random.Generator, spread: float = 1.0
) -> Case:
    """The CTC loss of random sequences of full length against random targets, class 0 being the blank.

    The loss and the forward variables come from torch where it is installed, in float32 for the 16-bit dtypes. `spread`
    is the standard deviation of the logits.
    """
    logits = rng.normal(scale=spread, size=(steps, batch, classes))
    log_probs = aligned_copy(logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True), dtype)
    targets = rng.integers(1, classes, size=(batch, labels))
    input_lengths, target_lengths = np.full(batch, steps), np.full(batch, labels)
    wide = np.promote_types(log_probs.dtype, np.float32)
    if torch is None:
        losses, log_alpha = ctc.forward(log_probs, targets, input_lengths, target_lengths)
    else:
        arguments = (to_torch(targets), input_lengths.tolist(), target_lengths.tolist(), 0, False)
        outcome = torch.ops.aten._ctc_loss(to_torch(log_probs.astype(wide)), *arguments)
        losses, log_alpha = (tensor.numpy() for tensor in outcome)
    grad_out = rng.uniform(0.5, 1.5, size=batch).astype(dtype)
    forward = (aligned_copy(losses, wide), aligned_copy(log_alpha, wide))
    return Case("CtcLossBackward", [grad_out, log_probs, targets, input_lengths, target_lengths, *forward])


# Sessions


def quiet_options(threads: int) -> ort.SessionOptions:
    """Options of a session with `threads` threads that logs errors only."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def portable_session(case: Case, options: ort.SessionOptions) -> ort.InferenceSession:
    """A session of the linked model without the kernels."""
    return ort.InferenceSession(onnx_ops.link(case.model).SerializeToString(), options)


def bound_run(
    session: ort.InferenceSession, feeds: Mapping[str, np.ndarray], output: np.ndarray
) -> Callable[[], object]:
    """A call that runs the session from `feeds` into `output`, copying nothing. The arrays have to outlive it."""
    binding = session.io_binding()
    for name, array in feeds.items():
        binding.bind_input(name, "cpu", 0, onnx_element_type(array.dtype), array.shape, array.ctypes.data)
    (name,) = (value.name for value in session.get_outputs())
    binding.bind_output(name, "cpu", 0, onnx_element_type(output.dtype), output.shape, output.ctypes.data)
    return functools.partial(session.run_with_iobinding, binding)


# torch


def to_torch(array: np.ndarray) -> Any:
    """A tensor on the memory of the array."""
    if array.dtype == DTYPES["bfloat16"]:
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)


def from_torch(tensor: Any) -> np.ndarray:
    """An array on the memory of the tensor."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.view(torch.int16).numpy().view(DTYPES["bfloat16"]))
    return np.asarray(tensor.numpy())


def torch_call(case: Case) -> Callable[[], Any] | None:
    """A call of torch's equivalent of the op, on the same memory; None without torch, or if it lacks the dtype.

    The gradients of losses are autograd's, the loss having been computed beforehand. Batch norm's is put together from
    tensor operations: torch has that op for GPUs only.
    """
    if torch is None:
        return None
    arguments = [None if value is None else to_torch(value) for value in case.inputs]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # kl_div advises batchmean over mean
            call = _TORCH[case.op_type](arguments, case.attributes)
            call()
    except NotImplementedError:  # raised by torch for a dtype that it does not have
        return None
    return call


def _hardshrink(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    return functools.partial(torch.ops.aten.hardshrink_backward, *arguments, attributes.get("lambd", 0.5))


def _kl_div(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    grad_output, this, target = arguments
    this.requires_grad_()
    loss = torch.nn.functional.kl_div(
        this, target, reduction=_reduction(attributes), log_target=bool(attributes.get("log_target", 0))
    )
    return functools.partial(_gradient, loss, this, grad_output)


def _binary_cross_entropy(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    grad_output, this, target, weight, pos_weight = [*arguments, None, None][:5]
    this.requires_grad_()
    loss = torch.nn.functional.binary_cross_entropy_with_logits(
        this, target, weight, reduction=_reduction(attributes), pos_weight=pos_weight
    )
    return functools.partial(_gradient, loss, this, grad_output)


def _gradient(loss: Any, this: Any, grad_output: Any) -> Any:
    return torch.autograd.grad(loss, this, grad_output, retain_graph=True)[0]


def _reduction(attributes: Mapping[str, Any]) -> str:
    return onnx_ops.Reduction(attributes.get("reduction", onnx_ops.Reduction.MEAN)).name.lower()


def _ctc_loss(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    grad_out, log_probs, targets, input_lengths, target_lengths, losses, log_alpha = arguments
    lengths = (input_lengths.tolist(), target_lengths.tolist())
    rest = (losses, log_alpha, attributes.get("blank", 0), bool(attributes.get("zero_infinity", 0)))
    return functools.partial(torch.ops.aten._ctc_loss_backward, grad_out, log_probs, targets, *lengths, *rest)


def _batch_norm(arguments: Sequence[Any], attributes: Mapping[str, Any]) -> Callable[[], Any]:
    grad_out, this, mean, invstd, weight, sum_dy, sum_dy_xmu, counter = arguments
    column = (-1, *[1] * (this.dim() - 2))

    def call() -> Any:
        n = counter.sum()
        offset = (sum_dy / n).view(column)
        slope = (invstd * invstd * (sum_dy_xmu / n)).view(column)
        scale = (invstd if weight is None else invstd * weight).view(column)
        out = ((grad_out - offset) - (this - mean.view(column)) * slope) * scale
        return out.to(this.dtype)

    return call


_TORCH: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Callable[[], Any]]] = {
    "KlDivBackward": _kl_div,
    "BinaryCrossEntropyWithLogitsBackward": _binary_cross_entropy,
    "CtcLossBackward": _ctc_loss,
    "BatchNormElemtBackward": _batch_norm,
    "HardshrinkBackward": _hardshrink,
}


# Command line and files


def argument_parser(description: str | None, dtypes: Sequence[str], json_path: str | None) -> argparse.ArgumentParser:
    """A parser with the options that the scripts have in common; the defaults are `dtypes` and `json_path`."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--op", nargs="+", choices=list(onnx_ops.OPS), default=list(onnx_ops.OPS), metavar="OP")
    parser.add_argument("--dtype", nargs="+", choices=list(DTYPES), default=list(dtypes), metavar="DTYPE")
    parser.add_argument("--threads", type=int, default=available_cores(), help="threads of onnxruntime and of torch")
    parser.add_argument("--json", type=Path, default=json_path, metavar="PATH", help="default: %(default)s")
    return parser


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def machine(threads: int) -> dict[str, Any]:
    """What measurements depend on: processor, threads, versions."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    packages = ["numpy", "onnx", "onnxruntime", "onnxruntime-extensions", "numba", *(["torch"] if torch else [])]
    return {
        "cpu": models[0] if models else platform.processor() or platform.machine(),
        "cores": available_cores(),
        "threads": threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{package: importlib.metadata.version(package) for package in packages},
    }


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a file of results; its folder is made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1) + "\n")
