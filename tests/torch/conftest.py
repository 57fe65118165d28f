"""Tests of what needs PyTorch; they are skipped without it."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("onnxscript")
