"""The page of `make web` in a real browser, and the server that it comes from."""

from __future__ import annotations

import contextlib
import http.client
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from playwright.sync_api import Browser, Page, Playwright, expect, sync_playwright

import onnx_ops
from models import digit_training, digits
from scripts.web import __main__ as web

ROOT = Path(__file__).parents[2]
CHROMIUM = next(filter(None, map(shutil.which, ["chromium", "chromium-browser", "google-chrome"])), None)
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SECONDS = 30  # longer than anything takes on a busy machine

needs_packages = pytest.mark.skipif(
    bool(web.missing_packages()),
    reason=f"{' and '.join(web.missing_packages())} not installed: run `npm ci` in scripts/web",
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed")


@contextlib.contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server as a user starts it, and the address that it prints."""
    command = [sys.executable, "-m", "scripts.web", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            yield process, re.findall(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running() as (_, address):
        yield address


# The server


Response = tuple[int, http.client.HTTPMessage, bytes]


def get(url: str, path: str, method: str = "GET") -> Response:
    """Asks for the path as it is; other clients would resolve its dots."""
    with contextlib.closing(http.client.HTTPConnection(url.split("/")[2], timeout=SECONDS)) as connection:
        connection.request(method, path)
        response = connection.getresponse()
        return response.status, response.headers, response.read()


@needs_packages
@pytest.mark.parametrize(
    ("path", "media_type"),
    {
        "/": "text/html; charset=utf-8",
        "/main.js?v=1": "text/javascript; charset=utf-8",
        "/style.css": "text/css; charset=utf-8",
        "/icon.svg": "image/svg+xml",
        "/setup.json": "application/json",
        "/training_step.onnx": "application/octet-stream",
        "/ort/ort.wasm.min.mjs": "text/javascript; charset=utf-8",
        "/ort/ort-wasm-simd-threaded.wasm": "application/wasm",
    }.items(),
)
def test_what_is_served(url: str, path: str, media_type: str) -> None:
    status, headers, body = get(url, path)
    assert status == 200
    assert headers["Content-Type"] == media_type
    assert int(headers["Content-Length"]) == len(body) > 0
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"

    status, head, body = get(url, path, "HEAD")
    assert (status, head["Content-Length"], body) == (200, headers["Content-Length"], b"")


@needs_packages
def test_every_file_of_the_page_has_a_media_type() -> None:
    assert {Path(name).suffix for name in web.contents()} <= set(web.MEDIA_TYPES)


@needs_packages
@pytest.mark.parametrize(
    "path",
    [
        "/../__main__.py",
        "/%2e%2e/__main__.py",
        "/..%2f__main__.py",
        "/ort/../../package.json",
        "/ort/../../../node_modules/uplot/package.json",
        "//etc/passwd",
        "/page/index.html",
        "/ort/",
        "../__main__.py",
        "/main.js\\..\\..\\__main__.py",
    ],
)
def test_nothing_else_is_served(url: str, path: str) -> None:
    assert get(url, path)[0] == 404


def test_without_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(web, "NODE_MODULES", tmp_path)
    assert web.main(["--port", "0"]) == 1
    output = capsys.readouterr()
    assert output.out == ""
    assert "onnxruntime-web and uplot not installed" in output.err
    assert "`make web`" in output.err


@needs_packages
def test_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert web.main(["--port", str(port)]) == 1
    output = capsys.readouterr()
    assert (output.out, output.err) == (
        "",
        f"scripts.web: port {port} is in use; `make web PORT=8001` takes another one\n",
    )


@needs_packages
def test_unknown_host(capsys: pytest.CaptureFixture[str]) -> None:
    assert web.main(["--host", "256.0.0.1"]) == 1
    assert "cannot serve at 256.0.0.1" in capsys.readouterr().err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_no_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as error:
        web.main([f"--port={port}"])
    assert error.value.code == 2
    assert "--port" in capsys.readouterr().err


@needs_packages
def test_interrupt_ends_it_quietly() -> None:
    with running() as (process, address):
        assert get(address, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS) == ("\n", "")
        assert process.returncode == 0


# The page


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    with playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS) as launched:
        yield launched


@pytest.fixture
def page(browser: Browser, url: str) -> Iterator[Page]:
    """The page, ready to start; when it is closed, nothing must have gone wrong in it."""
    complaints: list[str] = []
    asked: list[str] = []
    with browser.new_context() as context, context.new_page() as page:
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        context.on("requestfailed", lambda request: complaints.append(f"{request.url} failed"))
        context.on("request", lambda request: asked.append(request.url))
        page.goto(url)
        wait_for(page, "ready")
        yield page
    assert complaints == []
    assert any(address.endswith(".wasm") for address in asked)
    assert [address for address in asked if not address.startswith(url)] == []


def wait_for(page: Page, state: str) -> None:
    page.wait_for_selector(f"body[data-state={state}]")


def wait_for_steps(page: Page, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while len(history(page)["losses"]) < count:
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def history(page: Page) -> dict[str, Any]:
    """What has been trained since the beginning, as the page keeps it for its curves."""
    return page.evaluate("async () => (await import('/main.js')).history")


def shown(page: Page) -> dict[str, str]:
    return {name: page.inner_text(f"#{name}") for name in ("accuracy", "loss", "epoch", "speed", "digits", "status")}


def at_pace(page: Page, label: str) -> None:
    page.select_option("#pace", label=label)


AS_FAST_AS_IT_CAN = "As fast as it can"


@needs_packages
@needs_chromium
class TestPage:
    def test_learns(self, page: Page) -> None:
        assert page.evaluate("crossOriginIsolated")
        assert len(page.workers) == 1
        before = history(page)
        assert before["losses"] == []
        assert before["accuracies"][-1]["accuracy"] < 0.3

        at_pace(page, AS_FAST_AS_IT_CAN)
        page.click("#start")
        wait_for(page, "done")
        after = history(page)
        losses = np.array(after["losses"]).reshape(digit_training.EPOCHS, -1).mean(axis=1)
        accuracies = {point["step"]: point["accuracy"] for point in after["accuracies"]}
        steps_per_epoch = len(after["losses"]) // digit_training.EPOCHS
        assert losses[0] > losses[1] > losses[4] > losses[20] > losses[-1]
        assert losses[0] > 10 * losses[-1]
        assert accuracies[20 * steps_per_epoch] > 0.9
        assert accuracies[digit_training.EPOCHS * steps_per_epoch] >= digit_training.REQUIRED_ACCURACY

        labels = np.array(page.evaluate("async () => (await (await fetch('setup.json')).json()).heldOut.labels"))
        predictions = np.array(after["predictions"])
        accuracy = f"{100 * np.mean(predictions == labels):.1f} %"
        figures = shown(page)
        assert figures["accuracy"] == accuracy
        assert figures["loss"] == f"{losses[-1]:.4f}"
        assert figures["epoch"] == f"{digit_training.EPOCHS}.0"
        assert float(figures["speed"]) > 0.1
        assert accuracy in figures["status"]
        assert page.get_attribute("#progress", "value") == "1"

        named = page.locator("#digits li").all_text_contents()
        pairs = zip(predictions, labels, strict=True)
        assert named == [f"{digit}" if digit == label else f"{digit}≠{label}" for digit, label in pairs]
        page.check("#mistakes")
        mistakes = [name for name in named if "≠" in name]
        expect(page.locator("#digits li:visible")).to_have_text(mistakes)
        assert page.locator("#no-mistakes").is_visible() == (not mistakes)

    def test_pause_and_resume(self, page: Page) -> None:
        page.click("#start")
        wait_for_steps(page, 10)
        page.click("#pause")
        wait_for(page, "paused")
        paused = shown(page), history(page)
        page.wait_for_timeout(300)
        assert (shown(page), history(page)) == paused
        steps = len(paused[1]["losses"])
        assert f"{steps} steps" in paused[0]["status"]

        assert page.inner_text("#start") == "Resume"
        page.click("#start")
        wait_for_steps(page, steps + 10)
        assert history(page)["losses"][:steps] == paused[1]["losses"]

    def test_there_is_time_to_pause(self, page: Page) -> None:
        """At the speed that the page begins with, training takes 20 s; a slower one can be chosen meanwhile."""
        steps_per_epoch = len(digit_training.load().images) // digit_training.BATCH
        start = time.monotonic()
        page.click("#start")
        page.wait_for_timeout(2000)
        steps = len(history(page)["losses"])
        assert 0 < steps <= 5 * steps_per_epoch * (time.monotonic() - start) + 1

        at_pace(page, "1 epoch/s")
        page.wait_for_timeout(100)  # what was on its way
        start = time.monotonic()
        steps = len(history(page)["losses"])
        page.wait_for_timeout(1000)
        slowed = len(history(page)["losses"])
        assert steps < slowed <= steps + steps_per_epoch * (time.monotonic() - start) + 2
        page.click("#pause")
        wait_for(page, "paused")
        assert 0.1 < float(shown(page)["speed"]) < 1.5

    def test_settings_are_those_of_the_training(self, page: Page) -> None:
        learned = digit_training.load().images
        (batches,) = drawn(page, 1)
        sizes = sorted({len(images) for images, _ in batches})
        (hidden,) = digit_training.HIDDEN
        text = page.inner_text("footer")
        for words in (
            f"{len(learned)} images to learn from",
            f"one layer of {hidden} hidden units",
            f"{digit_training.EPOCHS} epochs of {len(batches)} steps",
            f"with {' or '.join(map(str, sizes))} images in a step",
            f"in a straight line from {digit_training.LEARNING_RATE:g} towards 0",
        ):
            assert words in text
        sent = page.evaluate("async () => (await (await fetch('setup.json')).json()).learningRates")
        np.testing.assert_allclose(
            sent, np.linspace(digit_training.LEARNING_RATE, 0, digit_training.EPOCHS, endpoint=False), rtol=1e-12
        )

    def test_reset(self, page: Page) -> None:
        beginning = shown(page), history(page)
        losses = []
        for _ in range(2):
            page.click("#start")
            wait_for_steps(page, 30)
            losses.append(history(page)["losses"][:30])
            page.click("#reset")
            wait_for(page, "ready")
            assert (shown(page), history(page)) == beginning
        assert losses[0] == losses[1]

    def test_numbers_are_those_of_python(self, page: Page) -> None:
        """The same batches in Python's onnxruntime give the same losses, over two epochs."""
        page.click("#start")
        wait_for_steps(page, 2 * (len(digit_training.load().images) // digit_training.BATCH))
        page.click("#pause")
        losses = history(page)["losses"]

        session = ort.InferenceSession(
            onnx_ops.link(digits.training_step(digit_training.HIDDEN)).SerializeToString(),
            providers=["CPUExecutionProvider"],
        )
        state = digits.initial_state(digit_training.HIDDEN, digit_training.SEED)
        expected = []
        for epoch, batches in enumerate(drawn(page, 2)):
            rate = np.array(digit_training.learning_rate(epoch), np.float32)
            for images, targets in batches:
                feeds = {"images": images, "targets": targets, "learning_rate": rate}
                loss, *next_state = session.run(None, feeds | state)
                state = dict(zip(state, next_state, strict=True))
                expected.append(loss)
        np.testing.assert_allclose(losses[: len(expected)], expected, rtol=1e-5)

    def test_an_epoch_shows_every_image_once_moved_by_up_to_a_pixel(self, browser: Browser, url: str) -> None:
        learned, labels, *_ = digit_training.load()
        padded = np.pad(learned.reshape(-1, digits.SIDE, digits.SIDE), ((0, 0), (1, 1), (1, 1)))
        sources: dict[bytes, set[int]] = {}
        for down, right in np.ndindex(3, 3):
            for index, image in enumerate(padded[:, down : down + digits.SIDE, right : right + digits.SIDE]):
                sources.setdefault(image.tobytes(), set()).add(index)

        with browser.new_page() as page:
            page.goto(f"{url}icon.svg")  # anything from there, for a program that needs no page
            epochs = drawn(page, 2)
        for batches in epochs:
            sizes = [len(images) for images, _ in batches]
            assert len(sizes) == len(learned) // digit_training.BATCH
            assert sum(sizes) == len(learned)
            assert max(sizes) - min(sizes) <= 1
            found = set()
            for images, targets in batches:
                for image, target in zip(images, targets, strict=True):
                    candidates = sources[image.tobytes()]
                    assert any(np.array_equal(target, np.eye(digits.DIGITS)[labels[index]]) for index in candidates)
                    found |= candidates
            assert found == set(range(len(learned)))
        assert not np.array_equal(epochs[0][0][0], epochs[1][0][0])

    def test_keyboard(self, page: Page) -> None:
        def focused() -> str:
            return page.evaluate("document.activeElement.id")

        page.evaluate("document.activeElement.blur()")
        page.keyboard.press("Tab")
        assert focused() == "start"
        page.keyboard.press("Enter")
        wait_for(page, "running")
        assert focused() == "pause"
        page.keyboard.press("Space")
        wait_for(page, "paused")
        assert focused() == "start"
        page.keyboard.press("Tab")
        assert focused() == "reset"
        page.keyboard.press("Enter")
        wait_for(page, "ready")
        assert focused() == "start"
        assert page.get_by_role("status").inner_text() == shown(page)["status"]

    def test_fits_every_width(self, page: Page) -> None:
        for width in (1280, 320, 390, 500, 768, 1000, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.wait_for_timeout(100)  # the charts follow
            assert page.evaluate("document.documentElement.scrollWidth") == width
            outside = """elements => elements.filter(element => {
                const { left, right } = element.getBoundingClientRect();
                const margin = parseFloat(getComputedStyle(document.body).paddingLeft);
                return right > left && (left < margin - 1 || right > innerWidth - margin + 1);
            }).map(element => element.outerHTML)"""
            assert page.locator("body *").evaluate_all(outside) == []
            right = "element => Math.round(element.getBoundingClientRect().right)"
            assert page.locator("#pace").evaluate(right) <= page.locator("#progress").evaluate(right)
            too_wide = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).length"
            assert page.locator("#digits li, figure, .chart").evaluate_all(too_wide) == 0
            chart, frame = page.locator("#loss-chart canvas"), page.locator("#loss-chart")
            box, around = chart.bounding_box(), frame.bounding_box()
            assert box is not None
            assert around is not None
            assert box["width"] == pytest.approx(around["width"], abs=1)

    def test_color_schemes(self, page: Page) -> None:
        def brightness(style: str) -> int:
            color = page.evaluate(f"getComputedStyle(document.body).{style}")
            return sum(map(int, re.findall(r"\d+", color)))

        page.emulate_media(color_scheme="light")
        assert brightness("color") < 200 < 600 < brightness("backgroundColor")
        page.emulate_media(color_scheme="dark")
        assert brightness("backgroundColor") < 200 < 600 < brightness("color")

    @pytest.mark.parametrize(
        ("name", "message"),
        {
            "training_step.onnx": "training_step.onnx could not be loaded",
            "setup.json": "setup.json could not be loaded",
            "ort-wasm-simd-threaded.wasm": "onnxruntime-web could not be started",
            "worker.js": "The program that trains could not be loaded",
            "uPlot.esm.js": "A part of the page could not be loaded",
        }.items(),
    )
    def test_says_what_could_not_be_loaded(self, browser: Browser, url: str, name: str, message: str) -> None:
        with browser.new_context() as context, context.new_page() as page:
            context.route(f"**/{name}", lambda route: route.abort())
            page.goto(url)
            expect(page.get_by_role("alert")).to_contain_text(message)
            assert page.inner_text("#status") == "Stopped."
            assert page.locator("button:enabled").count() == 0

    def test_says_that_there_is_no_webassembly(self, playwright: Playwright, url: str) -> None:
        flags = [*FLAGS, "--js-flags=--jitless"]
        with playwright.chromium.launch(executable_path=CHROMIUM, args=flags) as browser, browser.new_page() as page:
            page.goto(url)
            page.wait_for_selector("#error:visible")
            assert page.get_by_role("alert").inner_text().startswith("This browser has no WebAssembly")


Batch = tuple[np.ndarray, np.ndarray]


def drawn(page: Page, epochs: int) -> list[list[Batch]]:
    """The batches that training begins with: drawn once more, by the page's own program."""
    answer = page.evaluate(
        """async (epochs) => {
            const { Batches } = await import("/batches.js");
            const setup = await (await fetch("/setup.json")).json();
            const batches = new Batches(setup.learned, setup);
            const next = () => {
                const { images, targets, count } = batches.next();
                return [Array.from(images), Array.from(targets), count];
            };
            return Array.from({ length: epochs }, () => Array.from({ length: batches.perEpoch }, next));
        }""",
        epochs,
    )
    return [
        [tuple(np.array(flat, np.float32).reshape(count, -1) for flat in arrays) for *arrays, count in batches]
        for batches in answer
    ]
