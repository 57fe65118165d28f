"""Packed sequences in captured steps: other lengths, other batches and several steps, compared with PyTorch."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from captures import gradients, training_step
from cases import names_with
from torch import Tensor, nn
from torch.export import Dim
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence, unpack_sequence

from onnx_ops import InferenceSession, StepError, Trainer

FEATURES, WIDTH = 3, 4

LAYERS: dict[str, tuple[type[nn.RNNBase], dict[str, Any], bool]] = {
    "lstm": (nn.LSTM, {}, False),
    "lstm_from_states_projected_deep_both_ways": (
        nn.LSTM,
        {"batch_first": True, "proj_size": 2, "num_layers": 2, "bidirectional": True},
        True,
    ),
    "gru_deep_both_ways": (nn.GRU, {"num_layers": 2, "bidirectional": True, "batch_first": True}, False),
    "gru_from_states_without_bias": (nn.GRU, {"bias": False}, True),
    "rnn_from_states_both_ways": (nn.RNN, {"bidirectional": True}, True),
    "rnn_relu": (nn.RNN, {"nonlinearity": "relu", "batch_first": True}, False),
}
LIKE_OTHERS = {"lstm", "gru_deep_both_ways", "gru_from_states_without_bias", "rnn_from_states_both_ways", "rnn_relu"}
"""Covered by the other cases; run by `make test-full`."""

LENGTHS = [[3, 5, 2], [1], [4, 4], [1, 6, 3, 2, 6]]
"""Of sequences that are padded by one step more than the longest has."""


def weighted(values: Tensor) -> Tensor:
    """A number to which each element contributes with its own slope."""
    return (values * values.cos() * torch.linspace(0.5, 1.5, values.shape[-1], dtype=values.dtype)).sum()


class Network(nn.Module):
    """The packed, the padded form of the results, and the final states all enter the loss."""

    def __init__(self, kind: type[nn.RNNBase], options: dict[str, Any], given_states: bool) -> None:
        super().__init__()
        self.layer = kind(FEATURES, WIDTH, **options)
        self.first = options.get("batch_first", False)
        count = options.get("num_layers", 1) * (2 if options.get("bidirectional") else 1)
        widths = [options.get("proj_size", 0) or WIDTH, *([WIDTH] if kind is nn.LSTM else [])]
        self.states = nn.ParameterList(torch.randn(count, 1, width) for width in widths) if given_states else None

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(
            x if self.first else x.transpose(0, 1), lengths, batch_first=self.first, enforce_sorted=False
        )
        states = None
        if self.states is not None:
            states = tuple(state.expand(-1, x.shape[0], -1) for state in self.states)
            states = states if len(states) > 1 else states[0]
        results, ends = self.layer(packed, states)
        padded, _ = pad_packed_sequence(results, batch_first=True)
        ends = ends if isinstance(ends, tuple) else (ends,)
        return (
            weighted(padded) + weighted(results.data.sin()) + sum((weighted(3 * end) for end in ends), torch.zeros(()))
        )


def batch(lengths: list[int], extra: int = 1) -> tuple[Tensor, Tensor]:
    """Sequences whose padding is infinite, as it must not be computed with."""
    x = torch.randn(len(lengths), max(lengths) + extra, FEATURES)
    for row, length in zip(x, lengths, strict=True):
        row[length:] = torch.inf
    return x, torch.tensor(lengths)


def compare(capture: Any, model: nn.Module, loss: Callable[..., Tensor], inputs: tuple[Tensor, ...]) -> None:
    """Loss and all gradients, with those of PyTorch in float64."""
    exact = copy.deepcopy(model).double()
    wanted = loss(exact, *(x.double() if x.is_floating_point() else x for x in inputs))
    slopes = torch.autograd.grad(wanted, list(exact.parameters()))
    names = ["loss", *(f"grad.{name}" for name, _ in model.named_parameters())]
    session = InferenceSession(capture.model)
    feeds = dict(zip(["x", "lengths"], (x.numpy() for x in inputs), strict=False))
    given = {value.name for value in session.get_inputs()}
    *got, holds = session.run(
        [*names, "condition.holds"], capture.state | {n: a for n, a in feeds.items() if n in given}
    )
    assert holds.all()
    for name, array, tensor in zip(names, got, (wanted.detach(), *slopes), strict=True):
        scale = max(float(tensor.abs().max()), 1.0)
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=2e-6 * scale, err_msg=name)


def total(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
    return model(x, lengths)


@pytest.mark.parametrize("name", names_with(full=LIKE_OTHERS, names=LAYERS))
def test_gradients(name: str) -> None:
    torch.manual_seed(1)
    model = Network(*LAYERS[name])
    dims = {0: Dim("N"), 1: Dim("T")}, {0: Dim("N")}
    capture = gradients(model, total, batch(LENGTHS[0]), dynamic_shapes=dims)
    for lengths in LENGTHS:
        compare(capture, model, total, batch(lengths))


class Tagger(nn.Module):
    """Rows are changed while they are packed, and sequences sorted by the caller are padded to a given length."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Linear(FEATURES, FEATURES)
        self.layer = nn.GRU(FEATURES, WIDTH, batch_first=True)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True)
        rows = PackedSequence(self.embedding(packed.data).tanh(), packed.batch_sizes)
        results, _ = self.layer(rows)
        results.data.mul_(2.0)
        padded, found = pad_packed_sequence(results, batch_first=True, padding_value=0.5, total_length=x.shape[1] + 1)
        return weighted(padded) + (found * lengths).sum()


@pytest.mark.parametrize("dims", [None, ({0: Dim("N")}, {0: Dim("N")})], ids=["static", "dynamic"])
def test_lengths_of_numpy(dims: Any) -> None:
    """As Tacotron 2 has them: a trace has an array of symbols for a static number of lengths, else a tensor."""

    def of_arrays(model: nn.Module, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu().numpy(), batch_first=True, enforce_sorted=False)
        padded, _ = pad_packed_sequence(model(packed)[0], batch_first=True)
        return weighted(padded) + torch.from_numpy(lengths.numpy()).sum()

    torch.manual_seed(4)
    model = nn.LSTM(FEATURES, WIDTH, batch_first=True)
    capture = gradients(model, of_arrays, batch([2, 4, 3], extra=0), dynamic_shapes=dims)
    for lengths in [[4, 1, 2], [1, 3, 4]] if dims is None else [[1, 4], [4, 2, 2, 3]]:
        compare(capture, model, of_arrays, batch(lengths, extra=0))


def test_rows_and_lengths() -> None:
    """With a static number of steps, and several steps of training."""
    torch.manual_seed(2)
    model = Tagger()
    x, lengths = batch([4, 3, 1], extra=0)
    dims = {0: Dim("N")}, {0: Dim("N")}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    capture = training_step(model, total, (x, lengths), optimizer, dynamic_shapes=dims)
    trainer = Trainer(capture)
    for lengths in [[4, 4], [3, 2, 2, 1], [4]]:
        x, ends = batch(lengths, extra=4 - lengths[0])
        optimizer.zero_grad()
        loss = model(x, ends)
        loss.backward()
        optimizer.step()
        found = trainer.step(x=x.numpy(), lengths=ends.numpy())
        np.testing.assert_allclose(found["loss"], loss.item(), rtol=2e-6)
    for wrong in [[2, 3], [5, 1], [3, 0]]:  # not sorted, too long, without a step
        with pytest.raises(StepError, match=r"test_packed_sequences\.py, line \d+ .*pack_padded_sequence"):
            trainer.step(x=np.zeros((2, 4, FEATURES), np.float32), lengths=np.array(wrong))


def test_lengths_that_are_constants() -> None:
    """Of tensors, and of sequences that are packed one by one."""

    def loss(model: nn.RNNBase, x: Tensor) -> Tensor:
        sequences = pack_sequence([x[1], x[0, :2]])
        (results, _), (constant, _) = model(sequences), model(pack_padded_sequence(x.transpose(0, 1), [4, 1]))
        pairs = itertools.chain(unpack_sequence(results), [constant.data])
        return sum((weighted(values) for values in pairs), torch.zeros(()))

    torch.manual_seed(3)
    model = nn.LSTM(FEATURES, WIDTH)
    capture = gradients(model, loss, (torch.randn(2, 4, FEATURES),))
    exact = copy.deepcopy(model).double()
    x = torch.randn(2, 4, FEATURES)
    wanted = torch.autograd.grad(loss(exact, x.double()), list(exact.parameters()))
    got = InferenceSession(capture.model).run(
        [f"grad.{n}" for n, _ in model.named_parameters()], capture.state | {"x": x.numpy()}
    )
    for array, tensor in zip(got, wanted, strict=True):
        np.testing.assert_allclose(array, tensor.numpy(), rtol=0, atol=2e-6 * float(tensor.abs().max()))
