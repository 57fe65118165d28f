"""What tests share: the Node process of a pytest worker, and the browser of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from chromium import CHROMIUM, FLAGS
from onnxruntime_web import WEB_PACKAGE, Node, the_node, what_is_missing
from playwright.sync_api import Browser, Playwright, sync_playwright


@pytest.fixture(scope="session")
def processes() -> Iterator[dict[str, Node]]:
    """The Node processes, by package of onnxruntime, which must be well when the tests are over."""
    started: dict[str, Node] = {}
    yield started
    assert all(node.close() == 0 for node in started.values())


@pytest.fixture(scope="session")
def node(request: pytest.FixtureRequest, processes: dict[str, Node]) -> Node:
    """onnxruntime-web in Node, or the package that is the parameter."""
    runtime = getattr(request, "param", WEB_PACKAGE)
    missing = what_is_missing(runtime)
    if missing:
        pytest.skip(missing)
    return processes.setdefault(runtime, the_node(runtime))


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    """What starts Chromium, if it is installed."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    """Chromium."""
    with playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as launched:
        yield launched
