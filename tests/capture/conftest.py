"""These tests need PyTorch, and what translates its operators."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")


@pytest.fixture(autouse=True)
def same_weights() -> None:
    """The weights of models do not depend on the tests that have run before."""
    torch.manual_seed(0)
