"""The table of PyTorch's operators, and the decorators that fill it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from onnx_ops.torch import gradients, operators, translation_table
from onnx_ops.torch.base import table
from onnx_ops.torch.lowering import translation
from onnx_ops.torch.operators import TABLE

aten = torch.ops.aten


@pytest.fixture
def empty(monkeypatch: pytest.MonkeyPatch) -> table.Table:
    """An empty table, which the decorators fill."""
    made = table.Table()
    monkeypatch.setattr(table, "TABLE", made)
    return made


@pytest.mark.parametrize(
    ("enters", "key"),
    [
        (table.replaces, torch.hypot),
        (table.provides, torch.batch_norm_stats),
        (table.corrects, torch.batch_norm),
        (table.differentiates, aten.convolution_backward.default),
        (table.decomposes, aten.elu.default),
        (table.translates, aten.elu.default),
        (table.draws, aten.rand.default),
        (table.computes_float64, "Erf"),
        (table.rewrites, "MaxPool2dWithIndices"),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_operator_is_entered_once(empty: table.Table, enters: object, key: object) -> None:
    enters(key)(abs)
    with pytest.raises(ValueError, match="twice"):
        enters(key)(max)


def test_an_operator_may_have_entries_of_several_kinds(empty: table.Table) -> None:
    table.translates(aten.elu.default)(abs)
    table.decomposes(aten.elu.default)(max)
    assert (empty.translations, empty.decompositions) == ({aten.elu.default: abs}, {aten.elu.default: max})


def test_a_decomposition_of_one_dtype(empty: table.Table) -> None:
    table.decomposed_by_pytorch(aten.hardswish.default, only=torch.float64)
    decomposed, x = empty.decompositions[aten.hardswish.default], torch.linspace(-4, 4, 9)
    assert decomposed(x) is NotImplemented
    torch.testing.assert_close(decomposed(x.double()), torch.nn.functional.hardswish(x.double()))


def test_the_translation_table_is_a_copy() -> None:
    translation_table().clear()
    assert translation_table() == TABLE.translations != {}


@pytest.fixture
def registered_anew() -> Iterator[None]:
    """Translations are registered again with torch.onnx, before and after the test."""
    translation.registry.cache_clear()
    yield
    translation.registry.cache_clear()


def test_adding_an_operator_as_contributing_says(
    empty: table.Table, registered_anew: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (source,) = re.findall(
        r"^```python\n(.*?@translates.*?)^```", text.split("## Adding an operator")[1], re.DOTALL | re.M
    )
    assert Path(operators.__file__).with_name("searchsorted.py").read_text(encoding="utf-8") == source
    exec(compile(source, "searchsorted.py", "exec"), {})
    for operator, translate in empty.translations.items():
        monkeypatch.setitem(TABLE.translations, operator, translate)
    model = torch.nn.Linear(3, 3)

    def loss(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        ordered, order = y.sort()
        by_order = torch.searchsorted(y, x, sorter=order) - 2 * torch.bucketize(x.log(), ordered[0])  # NaN too
        return (model(x) * (torch.searchsorted(ordered, x, right=True) + by_order)).sum()

    gradients(model, loss, (torch.randn(2, 3), torch.randn(2, 7)))  # and compares with PyTorch
