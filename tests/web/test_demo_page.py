"""The page that `make demo` writes, in Chromium: all of it can be seen on a telephone too."""

from __future__ import annotations

import pytest
from cases import names_with

pytest.importorskip("matplotlib")

from playwright.sync_api import Browser

from scripts.trainings import pictures
from scripts.trainings.command import Result
from scripts.trainings.page import page

READABLE = 11.0
"""The font size in pixels; 16 are usual on pages."""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Of a page with a picture."""
    folder = tmp_path_factory.mktemp("page")
    with pictures.picture(folder / "picture.png", 2) as figure:
        figure.subplots().set_title("What there is to see")
    op = "BatchNormGatherStatsWithCounts"
    result = Result(op, "digits read by workers that share small batches", "97 %", True, 1e-7, {}, 12)
    drawn = Result(op, "a task", "98 %", True, 1e-7, {folder / "picture.png": "What it shows."}, 12)
    (folder / "index.html").write_text(page({"one": result, "two": drawn}, full=False), encoding="utf-8")
    return (folder / "index.html").as_uri()


@pytest.mark.parametrize("width", names_with(full={390, 700, 870}, names=[320, 390, 700, 870, 1280]))
def test_fits(browser: Browser, address: str, width: int) -> None:
    """Nothing is cut off, and text in pictures is never too small to read."""
    with browser.new_page(viewport={"width": width, "height": 800}) as shown:
        shown.goto(address)
        assert shown.evaluate("document.documentElement.scrollWidth") == width
        cut = """elements => elements.filter(element => {
            const { left, right } = element.getBoundingClientRect();
            return right > left && (left < 0 || right > innerWidth);
        }).map(element => element.outerHTML)"""
        assert shown.locator("body *:not(img)").evaluate_all(cut) == []
        named = "cells => cells.map(cell => getComputedStyle(cell, '::before').content !== 'none')"
        has_heads = shown.locator("th").first.is_visible()
        assert set(shown.locator("td").evaluate_all(named)) == {not has_heads}
        assert shown.locator("td").evaluate_all("cells => cells.every(cell => cell.scrollWidth <= cell.clientWidth)")
        box = shown.locator("img").bounding_box()
        assert box is not None
        points = pictures.STYLE["font.size"]
        assert points / 72 / pictures.WIDTH * box["width"] >= READABLE
        around = shown.locator(".picture")
        frame = around.bounding_box()
        assert frame is not None
        assert shown.get_by_text("Scroll horizontally").is_visible() == (box["width"] > frame["width"])
        around.evaluate("element => element.scrollTo(10000, 0)")
        right = "element => Math.round(element.getBoundingClientRect().right)"
        assert shown.locator("img").evaluate(right) <= around.evaluate(right)  # all of it can be seen
