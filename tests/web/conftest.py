"""The Node process that the tests of a pytest worker share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from onnxruntime_web import Node, the_node, what_is_missing


@pytest.fixture(scope="session")
def node() -> Iterator[Node]:
    """onnxruntime-web in Node, which must be well when the tests are over."""
    missing = what_is_missing()
    if missing:
        pytest.skip(missing)
    yield the_node()
    assert the_node().close() == 0
