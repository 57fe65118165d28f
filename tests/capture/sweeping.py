"""Captures many cases of the table as one step, and compares each with PyTorch in float64."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

import onnx_ops
import onnx_ops.torch
from tests.capture.layers import Case
from tests.ops._shared.numbers import difference


class Branch(torch.nn.Module):
    """A case as a module, whether it is one or a function around one."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        # torch.manual_seed keeps the stack, as text, for each kind of device that is not there.
        torch.default_generator.manual_seed(zlib.crc32(case.text.encode()))
        self.function = case.build()
        held = [cell.cell_contents for cell in getattr(self.function, "__closure__", None) or ()]
        self.held = torch.nn.ModuleList([h for h in held if isinstance(h, torch.nn.Module)])

    def forward(self, *inputs: torch.Tensor) -> list[torch.Tensor]:
        result = self.function(*inputs)
        parts = result if isinstance(result, tuple | list) else [result]
        return [part for part in parts if isinstance(part, torch.Tensor) and part.requires_grad]


class Branches(torch.nn.Module):
    """Several cases side by side, so that one capture serves all."""

    def __init__(self, cases: Sequence[Case]) -> None:
        super().__init__()
        self.branches = torch.nn.ModuleList([Branch(case) for case in cases])
        self.unused = torch.nn.Parameter(torch.zeros(()))

    def forward(self, batch: Any) -> list[list[torch.Tensor]]:
        return [branch(*inputs) for branch, inputs in zip(self.branches, batch, strict=True)]


def weighted(model: torch.nn.Module, batch: Any, weights: Any, each: Any = lambda term: term) -> dict[str, Any]:
    """The sum of all outputs, each element with a weight of its own; the sums of the cases are reported."""
    results = model(batch)
    sums = [
        sum(each(o * w).sum() for o, w in zip(outs, ws, strict=True)) for outs, ws in zip(results, weights, strict=True)
    ]
    return {"loss": sum(sums), "sums": sums}


def converted(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, list):
        return [converted(v, dtype) for v in value]
    if not value.is_floating_point():
        return value
    return value.detach().to(dtype).requires_grad_(value.requires_grad)


def truth(cases: Sequence[Case], batch: Any, weights: Any, dtype: torch.dtype) -> list[dict[str, np.ndarray]]:
    """For each case its sum and all gradients, by PyTorch in a dtype."""
    found = []
    for case, inputs, ws in zip(cases, batch, weights, strict=True):
        model = Branches([case]).to(dtype)
        given = converted(inputs, dtype)
        value = weighted(model, [given], [converted(ws, dtype)])["loss"]
        terms = weighted(model, [given], [converted(ws, dtype)], torch.abs)["loss"]
        leaves = {name: p for name, p in model.branches[0].named_parameters()}
        leaves |= {str(i): x for i, x in enumerate(given) if x.requires_grad}
        gradients = torch.autograd.grad(value, list(leaves.values()), allow_unused=True)
        found.append(
            {"loss": value.detach().numpy(), "terms": terms.detach().numpy()}
            | {
                n: (torch.zeros_like(t) if g is None else g).numpy()
                for (n, t), g in zip(leaves.items(), gradients, strict=True)
            }
        )
    return found


def examples(cases: Sequence[Case]) -> tuple[Any, Any]:
    """Inputs of the cases, and weights for their outputs."""
    batch, weights = [], []
    for case in cases:
        rng = np.random.default_rng(zlib.crc32(case.text.encode()))
        inputs = [given.tensor(rng).requires_grad_(given.differentiable) for given in case.inputs]
        with torch.random.fork_rng(devices=[]):
            outputs = Branch(case)(*inputs)
        batch.append(inputs)
        weights.append([torch.from_numpy(np.asarray(rng.uniform(-1, 1, tuple(o.shape)))).float() for o in outputs])
    return batch, weights


def errors(cases: Sequence[Case], dtype: torch.dtype) -> list[tuple[str, float, float]]:
    """For each case the worst output: its name, its error relative to its largest entry, and PyTorch's error."""
    batch, weights = examples(cases)
    batch, weights = converted(batch, dtype), converted(weights, dtype)
    model = Branches(cases).to(dtype)
    captured = onnx_ops.torch.gradients(
        model, weighted, (batch, weights), check=False, inference=dtype is torch.float32
    )
    session = onnx_ops.InferenceSession(captured.model)
    feeds: dict[str, np.ndarray] = dict(captured.state)
    for what, values in (("batch", batch), ("weights", weights)):
        for i, tensors in enumerate(values):
            feeds |= {f"{what}.{i}.{j}": tensor.detach().numpy() for j, tensor in enumerate(tensors)}
    wanted = [value.name for value in session.get_inputs()]
    names = [value.name for value in session.get_outputs()]
    got = dict(zip(names, session.run(None, {name: feeds[name] for name in wanted}), strict=True))
    exact = truth(cases, batch, weights, torch.float64)
    theirs = truth(cases, batch, weights, dtype)
    found = []
    for i in range(len(cases)):
        worst = ("", 0.0, 0.0)
        for name in exact[i].keys() - {"terms"}:
            key = (
                f"sums.{i}"
                if name == "loss"
                else f"grad.batch.{i}.{name}"
                if name.isdigit()
                else f"grad.branches.{i}.{name}"
            )
            scale = float(np.abs(exact[i][name]).max(initial=0)) or 1.0
            if name == "loss":
                scale = max(float(exact[i]["terms"]), 1.0)
            ours = _off(got[key], exact[i][name]) / scale
            torchs = _off(theirs[i][name], exact[i][name]) / scale
            if not ours - 2 * torchs <= worst[1] - 2 * worst[2]:
                worst = (name, ours, torchs)
        found.append(worst)
    return found


def _off(got: np.ndarray, wanted: np.ndarray) -> float:
    if got.shape != wanted.shape:
        return float("inf")
    return float(difference(got, wanted).max(initial=0))
