"""These tests need PyTorch, and what translates its operators."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
