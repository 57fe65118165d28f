"""Training steps of forward ONNX models and named losses."""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

import onnx
import torch
import torch.nn.functional as F
from torch import Tensor

from onnx_ops.core.step_format import STEP_METADATA
from onnx_ops.graph.files import embed_external_data, external_files, read_model
from onnx_ops.graph.metadata import metadata_of
from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.capture import Capture, training_step
from onnx_ops.torch.importing.module import ImportedModel
from onnx_ops.torch.importing.nodes import torch_dtype
from onnx_ops.torch.optimizers.plan import Optimizers

Loss = Literal["cross_entropy", "mse", "bce_with_logits", "l1"]
LOSSES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce_with_logits": F.binary_cross_entropy_with_logits,
    "l1": F.l1_loss,
}
TARGET = "labels"
SMALLEST = 3
"""Size of the first dynamic dimension in the example; further ones have the next odd sizes."""


def migrate(
    model: str | os.PathLike[str] | onnx.ModelProto,
    loss: Loss,
    optimizer: Callable[[Iterable[torch.nn.Parameter]], Optimizers],
    *,
    output: str | None = None,
    trainable: Iterable[str] | None = None,
    clip_grad_norm: float | None = None,
    opset_version: int = 21,
    check: bool = True,
    evaluation: bool = True,
) -> Capture:
    """A training step of a forward ONNX model and a loss.

    The graph is imported into PyTorch and captured. Its floating initializers are the parameters, under their names;
    the running statistics of BatchNormalization are buffers, which the step updates as torch.nn.BatchNorm2d does.
    Dimensions with a name, and those without a size, are dynamic.

    Args:
        model: with opset 13 or newer, or its file. Export it without folding weights into each other, as by
            `torch.onnx.export(..., dynamo=True, optimize=False)`.
        loss: mean over the batch of torch.nn.functional.cross_entropy (labels: int64 classes; the output has the logits
            of the classes along axis 1), mse_loss, binary_cross_entropy_with_logits or l1_loss (labels of the shape and
            dtype of the output).
        optimizer: makes one of torch.optim for the parameters, such as
            `lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)`.
        output: the name of the output that the loss takes; by default the first.
        trainable: patterns of names (fnmatch) of the initializers that are trained. By default all floating ones, but
            those of one element that are no weight of a layer.
        clip_grad_norm, opset_version, check, evaluation: as for `training_step`.

    Returns:
        A Capture. Inputs of its step: those of the model, with `_` for characters that are not of identifiers, and
        `labels`. Its inference graph is the model in evaluation mode.

    Raises:
        CaptureError: an unknown loss or output; a model that is a training step; operators that cannot be imported, all
            of them in one message; what `training_step` raises.
        ModelFileError: a file, or external data, that cannot be read; no model.
    """
    if loss not in get_args(Loss):
        raise CaptureError(f"loss is {loss!r}, expected one of {', '.join(get_args(Loss))}")
    proto = model if isinstance(model, onnx.ModelProto) else _read(Path(model))
    if metadata_of(proto, STEP_METADATA) is not None:
        raise CaptureError("the model is a training step already, expected a forward model")
    module = ImportedModel(proto, trainable)
    if output is not None and output not in module.output_names:
        raise CaptureError(f"there is no output '{output}', expected one of {', '.join(module.output_names)}")
    example = _Example(proto, module)
    names = [_identifier(name) for name in module.input_names]
    if len({*names, TARGET}) != len(names) + 1:
        given = ", ".join(module.input_names)
        raise CaptureError(f"inputs of the model are {given}, expected distinct names, and none '{TARGET}'")

    seed = output or module.output_names[0]

    def computed(network: torch.nn.Module, *args: Tensor) -> Tensor:
        return LOSSES[loss](network(*args[:-1])[seed], args[-1])

    def inferred(network: torch.nn.Module, *args: Tensor) -> dict[str, Tensor]:
        return {_identifier(name): result for name, result in network(*args).items()}

    _name_parameters(computed, ["model", *names, TARGET])
    _name_parameters(inferred, ["model", *names])
    target, target_axes = example.labels(loss, seed)
    module.train()
    capture = training_step(
        module,
        computed,
        (*example.inputs(0), target),
        optimizer(list(module.parameters())),
        dynamic_shapes=[*example.axes, target_axes],
        clip_grad_norm=clip_grad_norm,
        opset_version=opset_version,
        check=check,
        inference=inferred,
        evaluation=evaluation,
    )
    assert capture.inference is not None
    _name_outputs(capture.inference.graph, module.output_names)
    return capture


def optimizer_named(name: str, arguments: Mapping[str, Any]) -> Callable[[Iterable[torch.nn.Parameter]], Optimizers]:
    """What makes an optimizer of torch.optim, by its name without regard to case; ValueError for unknown names."""
    known = {
        own.lower(): kind
        for own, kind in vars(torch.optim).items()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if name.lower() not in known:
        listed = ", ".join(sorted(kind.__name__ for kind in known.values()))
        raise ValueError(f"no optimizer '{name}' in torch.optim, expected one of {listed}")
    made = known[name.lower()]
    own = [argument for argument in inspect.signature(made).parameters if argument != "params"]
    for argument in arguments:
        if argument not in own:
            raise ValueError(f"{made.__name__} has no argument '{argument}', expected one of {', '.join(own)}")
    return functools.partial(made, **arguments)


def _read(path: Path) -> onnx.ModelProto:
    """A model with its external data."""
    proto = read_model(path)
    external_files(proto, path)
    embed_external_data(proto, path)
    return proto


def _name_parameters(function: Callable[..., Any], names: Iterable[str]) -> None:
    """Give the inputs of a graph the names that a capture reads from the signature."""
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    signature = inspect.Signature([inspect.Parameter(name, kind) for name in names])
    function.__signature__ = signature  # type: ignore[attr-defined]


def _name_outputs(graph: onnx.GraphProto, names: Iterable[str]) -> None:
    """Give the outputs of a graph their names in the model, unless the graph has another value of that name."""
    taken = {name for node in graph.node for name in (*node.input, *node.output)}
    taken |= {value.name for value in (*graph.input, *graph.initializer)}
    renamed = {value.name: name for value, name in zip(graph.output, names, strict=True) if name not in taken}
    for node in graph.node:
        for names_of in (node.input, node.output):
            names_of[:] = [renamed.get(name, name) for name in names_of]
    for value in (*graph.output, *graph.value_info):
        value.name = renamed.get(value.name, value.name)


def _identifier(name: str) -> str:
    """A name as an identifier of Python."""
    text = re.sub(r"\W", "_", name)
    return text if text.isidentifier() else f"_{text}"


class _Example:
    """Random inputs of a model, in two sizes.

    Attributes:
        axes: the dynamic dimensions of each input, by axis.
    """

    def __init__(self, model: onnx.ModelProto, module: ImportedModel) -> None:
        self._module = module
        declared = {value.name: value.type.tensor_type for value in model.graph.input}
        self._types = [declared[name] for name in module.input_names]
        self._rows = {
            node.inputs[1]: module.get_parameter(node.inputs[0]).shape[node.get("axis", 0)]
            for node in module.nodes
            if node.kind == "Gather" and node.inputs[0] in dict(module.named_parameters())
        }
        self._dims: dict[str, torch.export.Dim] = {}
        self.axes: list[dict[int, Any]] = []
        for name, kind in zip(module.input_names, self._types, strict=True):
            if not kind.HasField("shape"):
                raise CaptureError(f"input '{name}' has no shape, expected its rank, with names for dynamic dimensions")
            self.axes.append(
                {
                    axis: self._dim(_identifier(dim.dim_param or f"{name}_{axis}"))
                    for axis, dim in enumerate(kind.shape.dim)
                    if not dim.HasField("dim_value")
                }
            )

    def _dim(self, name: str) -> Any:
        return self._dims.setdefault(name, torch.export.Dim(name))

    def _sizes(self, more: int) -> dict[str, int]:
        return {name: SMALLEST + 2 * place + more for place, name in enumerate(self._dims)}

    def inputs(self, more: int) -> list[Tensor]:
        """Inputs, whose dynamic sizes are larger by `more`."""
        generator = torch.Generator().manual_seed(more)
        found, of_dims = [], self._sizes(more)
        for name, kind, axes in zip(self._module.input_names, self._types, self.axes, strict=True):
            shape = [
                of_dims[axes[axis].__name__] if axis in axes else dim.dim_value
                for axis, dim in enumerate(kind.shape.dim)
            ]
            dtype = torch_dtype(kind.elem_type)
            if dtype.is_floating_point:
                made = torch.randn(shape, generator=generator)
            else:
                made = torch.randint(0, self._rows.get(name, 2), shape, generator=generator)
            found.append(made.to(dtype))
        return found

    def labels(self, loss: str, output: str) -> tuple[Tensor, dict[int, Any]]:
        """Labels of the example, and their dynamic dimensions: those of the output."""
        self._module.eval()
        with torch.no_grad():
            first, second = (self._module(*self.inputs(more))[output] for more in (0, 1))
        before, after = self._sizes(0), self._sizes(1)
        axes: dict[int, Any] = {}
        for axis, (small, large) in enumerate(zip(first.shape, second.shape, strict=True)):
            if small != large:
                same = [dim for name, dim in self._dims.items() if (before[name], after[name]) == (small, large)]
                axes[axis] = same[0] if same else torch.export.Dim.AUTO
        generator = torch.Generator().manual_seed(0)
        if loss != "cross_entropy":
            return torch.rand(first.shape, generator=generator).to(first.dtype), axes
        if first.ndim < 2 or 1 in axes:
            raise CaptureError(
                f"the output has shape {tuple(first.shape)}, expected a fixed number of classes on axis 1"
            )
        shape = [size for axis, size in enumerate(first.shape) if axis != 1]
        return torch.randint(0, first.shape[1], shape, generator=generator), {
            axis - (axis > 1): dim for axis, dim in axes.items()
        }
