"""onnx-ad: the gradients of an exported loss; the update is written here."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import onnx
from onnx import numpy_helper

from scripts.comparison.program import RATE, Batch, main

if TYPE_CHECKING:
    from scripts.comparison.networks import Network


def prepare(network: Network, folder: Path) -> None:
    import onnx_ad
    import torch

    from scripts.comparison.networks import Loss

    loss = Loss(network)
    batch, names = network.batches()[0], {"input_names": ["x", "y"], "output_names": ["loss"]}
    if any(isinstance(module, torch.nn.BatchNorm2d) for module in loss.modules()):
        # The newer exporter writes batch norm in evaluation mode.
        mode = torch.onnx.TrainingMode.TRAINING
        torch.onnx.export(
            loss, batch, folder / "loss.onnx", dynamo=False, training=mode, do_constant_folding=False, **names
        )
    else:
        rows = torch.export.Dim("rows")
        shapes = ({0: rows}, {0: rows}) if len(set(network.sizes)) > 1 else None
        # Optimization would transpose weights beforehand.
        torch.onnx.export(
            loss,
            batch,
            folder / "loss.onnx",
            dynamo=True,
            dynamic_shapes=shapes,
            external_data=False,
            optimize=False,
            verbose=False,
            **names,
        )
    model = onnx.load(folder / "loss.onnx")
    trained = [name for name, _ in loss.named_parameters()]
    arrays = {array.name: numpy_helper.to_array(array) for array in model.graph.initializer if array.name in trained}
    if missing := set(trained) - set(arrays):
        raise ValueError(f"the exported loss has no {missing}")
    np.savez(folder / "weights.npz", allow_pickle=False, **arrays)
    # As inputs alone: initializers would be constants of the backward pass.
    others = [array for array in model.graph.initializer if array.name not in arrays]
    del model.graph.initializer[:]
    model.graph.initializer.extend(others)
    for name, array in arrays.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
    onnx.save(onnx_ad.reverse(model, inputs=list(arrays), outputs=["loss"], layout="onnx"), folder / "step.onnx")


def train(folder: Path, batches: Sequence[Batch]) -> list[float]:
    import onnxruntime as ort

    with np.load(folder / "weights.npz") as arrays:
        weights = dict(arrays)
    adjoint = ort.InferenceSession(folder / "step.onnx")
    names = [output.name for output in adjoint.get_outputs()]
    losses = []
    for batch in batches:
        dtype = next(iter(weights.values())).dtype
        feeds = batch | weights | {"adj_loss": np.ones(1, dtype)}
        results = dict(
            zip(names, adjoint.run(None, {each.name: feeds[each.name] for each in adjoint.get_inputs()}), strict=True)
        )
        losses.append(float(results["loss"]))
        weights = {name: array - dtype.type(RATE) * results[f"adj_{name}"][..., 0] for name, array in weights.items()}
    return losses


def optimizers() -> list[str]:
    return []


if __name__ == "__main__":
    main(importlib.metadata.version("onnx-ad"), prepare, train, optimizers)
