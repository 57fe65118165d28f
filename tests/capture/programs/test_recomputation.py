"""torch.utils.checkpoint: the captured step recomputes activations as PyTorch does.

The oracle is the same model without checkpoint, whose step has the same numbers, bit for bit.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from captures import gradients, training_step
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import onnx_ops
from scripts.memory.peaks import RESETS


class Block(nn.Module):
    """A transformer block with one head."""

    def __init__(self, width: int, p: float = 0.0) -> None:
        super().__init__()
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.mixed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.dropout = nn.Dropout(p)

    def forward(self, x: Tensor) -> Tensor:
        h = self.norm(x)
        weights = (self.query(h) @ self.key(h).transpose(1, 2)).softmax(-1)
        x = x + self.dropout(weights) @ self.value(h)
        return x + self.dropout(self.mixed(self.norm2(x)))


class Network(nn.Module):
    """Blocks that `run`, a function of block and input, applies."""

    def __init__(self, run: Callable[[nn.Module, Tensor], Tensor], blocks: int, width: int, p: float = 0.0) -> None:
        super().__init__()
        self.embedding = nn.Embedding(32, width)
        self.blocks = nn.ModuleList([Block(width, p) for _ in range(blocks)])
        self.run = run

    def forward(self, ids: Tensor) -> Tensor:
        x: Tensor = self.embedding(ids)
        for block in self.blocks:
            x = self.run(block, x)
        return x


def plain(block: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = block(x)
    return result


def recomputed(block: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = checkpoint(block, x, use_reentrant=False)
    return result


def loss(model: nn.Module, ids: Tensor) -> Tensor:
    return (model(ids) - 1).square().mean()


def network(run: Callable[[nn.Module, Tensor], Tensor], blocks: int, width: int, p: float = 0.0) -> nn.Module:
    torch.manual_seed(0)
    return Network(run, blocks, width, p)


def ids(samples: int, steps: int) -> Tensor:
    return torch.randint(0, 32, (samples, steps), generator=torch.Generator().manual_seed(0))


def states(model: nn.Module, batch: Tensor, steps: int = 3) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The captured training step, and the state after some steps."""
    capture = training_step(model, loss, (batch,), torch.optim.AdamW(model.parameters(), 0.1))
    trainer = onnx_ops.Trainer(capture)
    for _ in range(steps):
        trainer.step(ids=batch.numpy())
    return capture.model, trainer.state_dict()


def count(model: onnx.ModelProto, op_type: str) -> int:
    return sum(node.op_type == op_type for node in model.graph.node)


def uses(model: onnx.ModelProto, name: str) -> int:
    return sum(name in node.input for node in model.graph.node)


@pytest.mark.parametrize("p", [pytest.param(0.0, marks=pytest.mark.full), 0.3])
def test_the_step_recomputes_the_same_numbers(p: float) -> None:
    batch = ids(2, 4)
    model, expected = states(network(plain, 2, 8, p), batch)
    again, got = states(network(recomputed, 2, 8, p), batch)
    for op_type in ("SoftmaxV2", "LayerNormalization", "DropoutV3"):
        assert count(again, op_type) == 2 * count(model, op_type), op_type
    # The backward pass does not read the output of a block's last layer.
    for weight, times in (("mixed.0.weight", 1), ("mixed.2.weight", 0)):
        assert uses(again, f"blocks.0.{weight}") == uses(model, f"blocks.0.{weight}") + times, weight
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def nested(block: nn.Module, x: Tensor) -> Tensor:
    def inner(x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        return x, {"block": checkpoint(block, x, use_reentrant=False)}

    x, results = checkpoint(inner, x, use_reentrant=False)
    return x + results["block"]


def sequential(block: nn.Module, x: Tensor) -> Tensor:
    result: Tensor = checkpoint_sequential([block, nn.Identity()], 2, x, use_reentrant=False)
    return result


@pytest.mark.parametrize(
    ("run", "same"),
    [(nested, lambda block, x: x + block(x)), pytest.param(sequential, plain, marks=pytest.mark.full)],
    ids=["nested", "sequential"],
)
def test_other_forms_of_checkpoints(run: Any, same: Any) -> None:
    batch = ids(2, 4)
    _, expected = states(network(same, 1, 8, 0.3), batch)
    model, got = states(network(run, 1, 8, 0.3), batch)
    assert count(model, "SoftmaxV2") > 1
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array, err_msg=name)


def test_dynamic_sizes_and_gradients_that_are_not_finite() -> None:
    model = network(recomputed, 2, 8)
    dynamic = {"ids": {0: torch.export.Dim("samples"), 1: torch.export.Dim("steps")}}
    capture = gradients(model, loss, (ids(2, 4),), dynamic_shapes=dynamic)
    session = onnx_ops.InferenceSession(capture.model)
    names = [value.name for value in session.get_outputs()]
    bad = {name: array.copy() for name, array in capture.state.items()}
    bad["blocks.1.mixed.2.bias"][:2] = np.nan, np.inf
    for state in (capture.state, bad):
        batch = ids(3, 5)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in state.items()})
        model.zero_grad()
        loss(model, batch).backward()
        got = dict(zip(names, session.run(names, {**state, "ids": batch.numpy()}), strict=True))
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            np.testing.assert_allclose(got[f"grad.{name}"], parameter.grad, rtol=1e-4, atol=1e-6, err_msg=name)


def ancestors(model: onnx.ModelProto, node: onnx.NodeProto) -> list[onnx.NodeProto]:
    """The nodes that a node depends on."""
    producers = {name: n for n in model.graph.node for name in n.output}
    found, waiting = {}, [node]
    while waiting:
        for name in waiting.pop().input:
            producer = producers.get(name)
            if producer is not None and producer.output[0] not in found:
                found[producer.output[0]] = producer
                waiting.append(producer)
    return list(found.values())


class Reversible(torch.autograd.Function):
    """Two layers whose inputs the backward computes from their results; it adds their parameters' gradients itself."""

    @staticmethod
    def forward(ctx: Any, one: Tensor, other: Tensor, first: nn.Module, second: nn.Module) -> tuple[Tensor, Tensor]:
        one = one + first(other)
        other = other + second(one)
        ctx.layers = first, second
        ctx.save_for_backward(one, other)
        return one, other

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (one, other), (grad_one, grad_other) = ctx.saved_tensors, grads
        first, second = ctx.layers
        with torch.enable_grad():
            leaf = one.detach().requires_grad_()
            again = second(leaf)
            again.backward(grad_other)
        other, grad_one = other - again.detach(), grad_one + leaf.grad
        with torch.enable_grad():
            leaf = other.detach().requires_grad_()
            torch.autograd.backward(first(leaf), grad_one)
        return grad_one, grad_other + leaf.grad, None, None


def test_gradients_that_a_backward_adds_itself() -> None:
    """Of layers that only the backward differentiates, and of one that the loss reads as well."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.third = (nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            one, other = Reversible.apply(self.third(x), self.second(x), self.first, self.second)
            one, other = Reversible.apply(one, other, self.second, self.first)
            return one * other

    torch.manual_seed(0)
    model = Layers()

    def squared(model: nn.Module, x: Tensor) -> Tensor:
        return model(x).square().mean()

    dynamic = ({0: torch.export.Dim("samples")},)
    capture = gradients(model, squared, (torch.randn(4, 3),), dynamic_shapes=dynamic)
    assert all(parameter.grad is None for parameter in model.parameters())
    x = torch.randn(5, 3)
    squared(model, x).backward()
    names = [value.name for value in capture.model.graph.output]
    got = dict(
        zip(names, onnx_ops.InferenceSession(capture.model).run(names, capture.state | {"x": x.numpy()}), strict=True)
    )
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        np.testing.assert_allclose(got[f"grad.{name}"], parameter.grad, rtol=1e-4, atol=1e-7, err_msg=name)


LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def test_optimizers_keep_the_recomputation_after_the_gradient(tmp_path: Path) -> None:
    blocks = 3
    capture = gradients(network(recomputed, blocks, 8), loss, (ids(2, 4),), check=False)
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3  # onnxruntime warns that the file is for this machine
        onnx_ops.InferenceSession(capture.model, options)
        model = onnx.load(tmp_path / "optimized.onnx")
        softmaxes = [node for node in model.graph.node if "SoftmaxV2" in node.op_type]
        # In the forward pass a block depends on those before it; the gradient that the recomputation of a block waits
        # for depends on all of these and on the recomputation of the blocks after it.
        depths = [sum("SoftmaxV2" in n.op_type for n in ancestors(model, node)) for node in softmaxes]
        assert sorted(depths) == list(range(2 * blocks)), level


ROOT = Path(__file__).parents[3]

PEAK = """
import sys
import numpy as np
import onnx_ops
from scripts.memory.peaks import peak, reset_peak, resident

onnx_ops.session_options()  # imports the compiler
before = resident()
trainer = onnx_ops.Trainer(sys.argv[1])
reset_peak()
ids = np.random.default_rng(0).integers(0, 32, (8, 192))
for _ in range(3):
    trainer.step(ids=ids)
print(peak() - before)
"""


@pytest.mark.skipif(not RESETS.exists(), reason="peaks are read from Linux's /proc")
@pytest.mark.full
def test_peak_of_twelve_blocks(tmp_path: Path) -> None:
    """At least 40 % less; 12 blocks keep activations of 200 MB, of which one block recomputes a twelfth."""
    peaks = {}
    for run in (plain, recomputed):
        path = tmp_path / f"{run.__name__}.onnx"
        model = network(run, 12, 64)
        optimizer = torch.optim.SGD(model.parameters())
        training_step(model, loss, (ids(8, 192),), optimizer, check=False, inference=False).save(path)
        command = [sys.executable, "-c", PEAK, path]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        peaks[run] = int(done.stdout)
    assert peaks[recomputed] < 0.6 * peaks[plain], peaks
