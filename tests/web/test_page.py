"""The page of `make web` in a real browser, and the server that it comes from."""

from __future__ import annotations

import contextlib
import functools
import http.client
import math
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import onnxruntime
import pytest
from chromium import CHROMIUM, FLAGS
from playwright.sync_api import Browser, Page, Playwright, expect

import onnx_ops
from models import digit_training, digits
from models.line_reader import data as lines
from scripts.web import __main__ as web
from scripts.web import tasks

ROOT = Path(__file__).parents[2]
SECONDS = 120  # longer than anything takes on a busy machine

needs_packages = pytest.mark.skipif(
    bool(web.missing_packages()),
    reason=f"{' and '.join(web.missing_packages())} not installed: run `npm ci` in scripts/web",
)


@contextlib.contextmanager
def running() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The server as a user starts it, and the address that it prints."""
    command = [sys.executable, "-m", "scripts.web", "--port", "0"]
    # A shell lets its jobs in the background ignore interrupts, and they what they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
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
        "/example/": "text/html; charset=utf-8",
        "/example/step.onnx": "application/octet-stream",
        "/main.js?v=1": "text/javascript; charset=utf-8",
        "/style.css": "text/css; charset=utf-8",
        "/icon.svg": "image/svg+xml",
        "/training/trainer.js": "text/javascript; charset=utf-8",
        "/digits/setup.json": "application/json",
        "/lines/arrays.bin": "application/octet-stream",
        "/lines/step.onnx": "application/octet-stream",
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
        "/example",
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


@pytest.mark.full
@needs_packages
def test_interrupt_ends_it_quietly() -> None:
    with running() as (process, address):
        assert get(address, "/")[0] == 200
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=SECONDS) == ("\n", "")
        assert process.returncode == 0


# The page


@pytest.fixture(scope="module")
def pages(browser: Browser, url: str) -> Iterator[Callable[[str], Page]]:
    """A function of a task to its page, which takes seconds to load and which the tests share."""
    with contextlib.ExitStack() as stack:
        yield functools.cache(lambda task: stack.enter_context(opened(browser, f"{url}?task={task}")))


@pytest.fixture
def page(pages: Callable[[str], Page]) -> Iterator[Page]:
    """The page of single digits, ready to start."""
    with restored(pages("digits")) as page:
        yield page


@pytest.fixture
def line_page(pages: Callable[[str], Page]) -> Iterator[Page]:
    """The page of lines, ready to start."""
    with restored(pages("lines")) as page:
        yield page


@contextlib.contextmanager
def opened(browser: Browser, address: str) -> Iterator[Page]:
    """The page, ready to start."""
    with watched(browser, address) as page:
        wait_for(page, "ready")
        yield page


@contextlib.contextmanager
def restored(page: Page) -> Iterator[Page]:
    """The page, which is ready to start afterwards too."""
    pace = page.input_value("#pace")
    try:
        yield page
    finally:
        page.select_option("#pace", pace)
        if page.is_enabled("#reset"):
            page.click("#reset")
            wait_for(page, "ready")


@contextlib.contextmanager
def watched(browser: Browser, address: str) -> Iterator[Page]:
    """A page; when it is closed, nothing must have gone wrong in it."""
    complaints: list[str] = []
    asked: list[str] = []
    with browser.new_context() as context, context.new_page() as page:
        page.set_default_timeout(1000 * SECONDS)
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        context.on("requestfailed", lambda request: complaints.append(f"{request.url} failed"))
        context.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        yield page
    assert complaints == []
    assert any(one.endswith(".wasm") for one in asked)
    server, own = urlsplit(address).netloc, [one for one in asked if not one.startswith("blob:")]
    assert {urlsplit(one).netloc for one in own} == {server}


def wait_for(page: Page, state: str) -> None:
    page.wait_for_selector(f"body[data-state={state}]")


def wait_for_frame(page: Page) -> None:
    """Wait until figures are drawn: in the frame after the state, which the page shows at once."""
    page.evaluate("() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")


def wait_for_steps(page: Page, count: int) -> None:
    deadline = time.monotonic() + SECONDS
    while len(history(page)["losses"]) < count:
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


def history(page: Page) -> dict[str, Any]:
    """What has been trained since the beginning, as the page keeps it for its curves."""
    return page.evaluate("async () => (await import('/main.js')).history")


def held_out_labels(page: Page) -> list[int]:
    return page.evaluate(
        """async () => {
            const { loadSetup } = await import("/loading.js");
            return Array.from((await loadSetup("digits")).arrays.heldOut.labels.data);
        }"""
    )


def shown(page: Page) -> dict[str, str]:
    names = "accuracy", "loss", "mean-loss", "epoch", "speed", "time-left", "digits", "status"
    return {name: page.inner_text(f"#{name}") for name in names}


def at_pace(page: Page, label: str) -> None:
    page.select_option("#pace", label=label)


def check_losses(figures: dict[str, str], losses: list[float]) -> None:
    """The loss that is shown is that of the last step, and beside it is a mean that says of how many steps it is."""
    assert figures["loss"] == f"{losses[-1]:.4f}"
    assert float(figures["mean-loss"]) == pytest.approx(np.mean(losses[-20:]), abs=1e-4)  # four digits are shown


def seconds(text: str) -> int:
    """Of "1 min 5 s"."""
    found = re.fullmatch(r"(?:(\d+) min )?(\d+) s", text)
    assert found, text
    return 60 * int(found[1] or 0) + int(found[2])


AS_FAST_AS_IT_CAN = "Maximum"


@needs_packages
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
        assert losses[0] > losses[1] > losses[4] > losses[10] > losses[-1]
        assert losses[0] > 10 * losses[-1]
        assert accuracies[4 * steps_per_epoch] > 0.9
        assert accuracies[digit_training.EPOCHS * steps_per_epoch] >= digit_training.REQUIRED_ACCURACY

        labels = np.array(held_out_labels(page))
        predictions = np.array(after["predictions"])
        accuracy = f"{100 * np.mean(predictions == labels):.1f} %"
        figures = shown(page)
        assert figures["accuracy"] == accuracy
        check_losses(figures, after["losses"])
        assert figures["time-left"] == "0 s"
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
        page.uncheck("#mistakes")

    def test_pause_and_resume(self, page: Page) -> None:
        page.click("#start")
        wait_for_steps(page, 10)
        page.click("#pause")
        wait_for(page, "paused")
        wait_for_frame(page)
        paused = shown(page), history(page)
        page.wait_for_timeout(300)
        assert (shown(page), history(page)) == paused
        steps = len(paused[1]["losses"])
        assert f"{steps} steps" in paused[0]["status"]
        check_losses(paused[0], paused[1]["losses"])
        left = steps / float(page.get_attribute("#progress", "value") or "nan") - steps
        # The speed is shown with one digit after the point, the time in whole seconds.
        assert seconds(paused[0]["time-left"]) == pytest.approx(left / float(paused[0]["speed"]), rel=0.01, abs=1)

        assert page.inner_text("#start") == "Resume"
        page.click("#start")
        wait_for_steps(page, steps + 10)
        assert history(page)["losses"][:steps] == paused[1]["losses"]

    @pytest.mark.full
    def test_there_is_time_to_pause(self, page: Page) -> None:
        """At the speed that the page begins with, training takes 23 s; a slower one can be chosen meanwhile."""
        start = time.monotonic()
        page.click("#start")
        page.wait_for_timeout(1000)
        steps = len(history(page)["losses"])
        assert 0 < steps <= 100 * (time.monotonic() - start) + 1

        at_pace(page, "20 steps/s")
        page.wait_for_timeout(100)  # what was on its way
        start = time.monotonic()
        steps = len(history(page)["losses"])
        page.wait_for_timeout(1000)
        slowed = len(history(page)["losses"])
        assert steps < slowed <= steps + 20 * (time.monotonic() - start) + 2
        page.click("#pause")
        wait_for(page, "paused")
        assert 2 < float(shown(page)["speed"]) < 30

    def test_settings_are_those_of_the_training(self, page: Page) -> None:
        learned = digit_training.load().images
        (batches,) = drawn(page, "digits", 1)
        sizes = sorted({len(batch["x"]) for batch in batches})
        (hidden,) = digit_training.HIDDEN
        text = page.inner_text("footer")
        for words in (
            f"{len(learned)} training images",
            f"{digit_training.COPIES} copies of each image",
            f"one layer of {hidden} hidden units",
            f"{digit_training.EPOCHS} epochs of {len(batches)} steps",
            f"with {' or '.join(map(str, sizes))} images each",
            f"linearly from {digit_training.LEARNING_RATE:g} to 0",
        ):
            assert words in text
        sent = page.evaluate("async () => (await (await fetch('digits/setup.json')).json()).learningRates")
        steps = digit_training.EPOCHS * len(batches)
        np.testing.assert_allclose(
            sent, np.linspace(digit_training.LEARNING_RATE, 0, steps, endpoint=False), rtol=1e-12
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

    @pytest.mark.full
    @pytest.mark.parametrize(("name", "steps", "near"), [("digits", 150, 1e-5), ("lines", 5, 1e-4)])
    def test_numbers_are_those_of_python(
        self, pages: Callable[[str], Page], name: str, steps: int, near: float
    ) -> None:
        """The same file, rates and batches give the same losses in Python, where kernels run; within float32."""
        epochs = math.ceil(steps / tasks.all_tasks()[name].setup["stepsPerEpoch"])
        with restored(pages(name)) as page:
            at_pace(page, AS_FAST_AS_IT_CAN)
            page.click("#start")
            wait_for_steps(page, steps)
            page.click("#pause")
            wait_for(page, "paused")
            losses = history(page)["losses"]
            batches = [batch for epoch in drawn(page, name, epochs) for batch in epoch]
        task = tasks.all_tasks()[name]
        trainer = onnx_ops.Trainer(task.step)
        expected = []
        for batch, rate in zip(batches[:steps], task.setup["learningRates"], strict=False):
            trainer.learning_rate = rate
            expected.append(float(trainer.step(**batch)["loss"]))
        np.testing.assert_allclose(losses[:steps], expected, rtol=near)

    @pytest.mark.full
    def test_an_epoch_shows_every_sample_once(self, browser: Browser, url: str) -> None:
        images, labels = digit_training.augmented(digit_training.load())
        with browser.new_page() as page:
            page.goto(f"{url}icon.svg")  # anything from there, for a program that needs no page
            epochs = drawn(page, "digits", 2)
        for batches in epochs:
            sizes = [len(batch["x"]) for batch in batches]
            assert len(sizes) == -(-len(images) // digit_training.BATCH)
            assert max(sizes) - min(sizes) <= 1
            found = np.concatenate([np.hstack([batch["x"], batch["labels"]]) for batch in batches])
            expected = np.hstack([images, labels])
            assert sorted(map(bytes, found)) == sorted(map(bytes, expected))
            assert not np.array_equal(found, expected)
        assert not np.array_equal(epochs[0][0]["x"], epochs[1][0]["x"])

    def test_keyboard(self, browser: Browser, url: str) -> None:
        """On a page on which nothing has been clicked, from where the focus would go on."""
        with opened(browser, url) as page:
            self.check_keyboard(page)

    def check_keyboard(self, page: Page) -> None:
        def focused() -> str:
            return page.evaluate("document.activeElement.id")

        page.evaluate("document.activeElement.blur()")
        for _ in range(3):  # past the two tasks
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

    @pytest.mark.full
    @pytest.mark.parametrize("task", ["digits", "lines"])
    def test_fits_every_width(self, pages: Callable[[str], Page], task: str) -> None:
        with restored(pages(task)) as page:
            for width in (1280, 320, 400, 500, 768, 1000, 1280):
                page.set_viewport_size({"width": width, "height": 800})
                page.wait_for_timeout(100)  # the charts follow
                assert page.evaluate("document.documentElement.scrollWidth") == width
                outside = """elements => {
                    const margin = parseFloat(getComputedStyle(document.body).paddingLeft);
                    return elements.filter(element => {
                        const { left, right } = element.getBoundingClientRect();
                        return right > left && (left < margin - 1 || right > innerWidth - margin + 1);
                    }).map(element => element.outerHTML);
                }"""
                assert page.locator("body *").evaluate_all(outside) == []
                right = "element => Math.round(element.getBoundingClientRect().right)"
                assert page.locator("#pace").evaluate(right) <= page.locator("#progress").evaluate(right)
                too_wide = "cells => cells.filter(cell => cell.scrollWidth > cell.clientWidth).length"
                assert page.locator("#digits li, #lines li, figure, .chart").evaluate_all(too_wide) == 0
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
        [
            ("step.onnx", "digits/step.onnx could not be loaded"),
            ("trainer.js", "The worker could not be loaded"),
            ("ort-wasm-simd-threaded.wasm", "onnxruntime-web could not be started"),
            pytest.param("setup.json", "digits/setup.json could not be loaded", marks=pytest.mark.full),
            pytest.param("worker.js", "The worker could not be loaded", marks=pytest.mark.full),
            pytest.param("uPlot.esm.js", "A part of the page could not be loaded", marks=pytest.mark.full),
        ],
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


@needs_packages
class TestLines:
    @pytest.mark.full
    def test_untrained_reader(self, line_page: Page) -> None:
        """What it makes of the held-out lines is what the same network makes of them in Python."""
        held_out = lines.held_out_lines(0, tasks.HELD_OUT_LINES)
        task = tasks.all_tasks()["lines"]
        trainer = onnx_ops.Trainer(task.step)
        with tempfile.TemporaryDirectory() as folder:
            trainer.export(Path(folder) / "reader.onnx")
            session = onnx_ops.InferenceSession(Path(folder) / "reader.onnx")
            (log_probs,) = session.run(None, {"images": held_out.images})
        expected = ["".join(map(str, reading)) for reading in lines.read(log_probs, held_out.widths)]
        found = history(line_page)["predictions"]
        # Untrained, many classes are about as likely, so rounding may choose: a few lines may differ.
        assert np.mean([one == other for one, other in zip(found, expected, strict=True)]) > 0.9
        shown = line_page.locator("#lines li .said").all_text_contents()
        truth = ["".join(map(str, digits)) for digits in lines.written(held_out)]
        assert shown == [
            f"written {right}, reads {reading or 'nothing'}"
            for right, reading in zip(truth[: len(shown)], found[: len(shown)], strict=True)
        ]

    def test_reading_is_that_of_python(self, browser: Browser, url: str) -> None:
        rng = np.random.default_rng(0)
        log_probs = rng.normal(size=(40, 30, 3)).astype(np.float32)
        padded = np.full((40, 30, lines.CLASSES), -np.inf, np.float32)
        padded[..., [3, 7, lines.BLANK]] = log_probs
        widths = rng.integers(1, 31, size=40)
        readings = lines.read(padded, widths)
        with browser.new_page() as page:
            page.goto(f"{url}icon.svg")
            found, distances = page.evaluate(
                """async ([rows, widths, readings]) => {
                    const { read, editDistance } = await import("/reading.js");
                    const found = rows.map((row, line) => read(row, widths[line], { classes: 3, blank: 2 }));
                    const distance = (one, line) => editDistance(one, readings.at(line - 1));
                    return [found.map((one) => one.map(({ digit }) => digit)), readings.map(distance)];
                }""",
                [log_probs.reshape(40, -1).tolist(), widths.tolist(), readings],
            )
        assert [[(3, 7)[digit] for digit in reading] for reading in found] == readings
        assert distances == [lines.edit_distance(one, readings[line - 1]) for line, one in enumerate(readings)]

    def test_own_line(self, line_page: Page) -> None:
        """Digits that are typed are images of held-out writers, and what is drawn is ink where it was drawn."""
        single = lines.digits(held_out=True)
        hands = [single.images[single.labels == digit].reshape(-1, 8, 8) for digit in range(10)]
        expected = np.zeros((lines.HEIGHT, lines.WIDTH))

        def line() -> np.ndarray:
            """The share of ink in each pixel."""
            flat = line_page.evaluate(
                """() => {
                    const canvas = document.querySelector("#own-line canvas");
                    const { width, height } = canvas;
                    return Array.from(canvas.getContext("2d").getImageData(0, 0, width, height).data);
                }"""
            )
            alpha = np.array(flat, float).reshape(4 * lines.HEIGHT, 4 * lines.WIDTH, 4)[..., 3] / 255
            return alpha.reshape(lines.HEIGHT, 4, lines.WIDTH, 4).mean(axis=(1, 3))

        before = line()
        for number, digit in enumerate([3, 1, 4, 1, 5]):
            column = 1 + (np.flatnonzero(expected.max(axis=0) > 0.05) + 1).max(initial=0)
            expected[1:9, column : column + 8] = hands[digit][number]
        np.testing.assert_allclose(before, expected, atol=1 / 255)  # opacity is kept in 8 bits
        assert history(line_page)["reading"]

        line_page.keyboard.press("7")
        typed = line()
        assert typed.sum() > before.sum() + 5
        line_page.keyboard.press("Backspace")
        np.testing.assert_array_equal(line(), before)

        box = line_page.locator("#own-line canvas").first.bounding_box()
        assert box is not None
        pixel = box["width"] / lines.WIDTH
        line_page.mouse.move(box["x"] + 70.5 * pixel, box["y"] + 2.5 * pixel)
        line_page.mouse.down()
        line_page.mouse.move(box["x"] + 70.5 * pixel, box["y"] + 7.5 * pixel)
        line_page.mouse.up()
        stroke = line() - before
        assert stroke[3:7, 70].min() > 0.9
        assert stroke[:, :69].max() < 0.01
        line_page.get_by_role("button", name="Clear").click()
        assert not line().any()
        line_page.wait_for_function("document.querySelector('#own-line .said').textContent === 'reads nothing'")

    def test_what_is_read_at_first(self, line_page: Page) -> None:
        """As the page says: untrained too many digits, and after a few steps none."""

        def read() -> list[str]:
            return [re.split("reads ", text)[-1] for text in line_page.locator("#lines .said").all_text_contents()]

        lead = re.sub(r"\s+", " ", line_page.inner_text("header"))
        assert "predicts too many digits, at random. After a few steps it predicts blanks only" in lead
        written = lines.written(lines.held_out_lines(0, tasks.HELD_OUT_LINES))
        assert all(len(text) > len(digits) for text, digits in zip(read(), written, strict=False))
        line_page.click("#start")
        wait_for_steps(line_page, 10)
        line_page.click("#pause")
        wait_for(line_page, "paused")
        assert set(read()) == {"nothing"}
        assert "mean of the last 20 steps" in line_page.inner_text(".figures")

    @pytest.mark.full
    def test_learns_to_read(self, line_page: Page) -> None:
        """After about a hundred steps digits stand out, as the page says."""
        line_page.click("#start")
        line_page.wait_for_selector("body[data-state=done]", timeout=600_000)
        points = history(line_page)["accuracies"]
        assert 50 < next(point["step"] for point in points if point["accuracy"] > 0.1) < 200
        assert points[-1]["accuracy"] > 0.9


@pytest.mark.full
@needs_packages
def test_example(browser: Browser, url: str, tmp_path: Path) -> None:
    """It learns, and the model that it exports has the accuracy that it shows."""
    with watched(browser, f"{url}example/") as page:
        for width in (320, 390, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        expect(page.get_by_role("status")).to_have_text("Ready.")
        page.evaluate(
            """() => {
                window.losses = [];
                const loss = document.getElementById("loss");
                new MutationObserver(() => window.losses.push(loss.textContent)).observe(loss, { childList: true });
            }"""
        )
        untrained = page.locator("canvas").screenshot()
        page.get_by_role("button", name="Train", exact=True).click()
        expect(page.get_by_role("status")).to_have_text("Done.", timeout=1000 * SECONDS)
        losses = [float(loss) for loss in page.evaluate("window.losses")]
        assert len(losses) > 20
        assert losses[0] > 0.3 > 0.1 > losses[-1]
        assert float(page.inner_text("#held-out-loss")) < 0.2
        assert page.locator("canvas").screenshot() != untrained
        with page.expect_download() as downloaded:
            page.get_by_role("button", name="Download").click()
        downloaded.value.save_as(tmp_path / downloaded.value.suggested_filename)
        points = page.evaluate(
            """async () => {
                const { heldOut } = await import("/example/example.js");
                return [Array.from(heldOut.x.data), Array.from(heldOut.labels.data)];
            }"""
        )
        x, labels = (np.array(numbers, np.float32) for numbers in points)
        (logits,) = onnxruntime.InferenceSession(tmp_path / "spirals.onnx").run(None, {"x": x.reshape(-1, 2)})
        accuracy = np.mean((logits[:, 0] > 0) == labels)
        assert accuracy > 0.95
        assert page.inner_text("#accuracy") == f"{100 * accuracy:.1f} %"


def test_images_are_moved_by_up_to_a_pixel() -> None:
    """Each of them five times."""
    data = digit_training.load()
    images, labels = digit_training.augmented(data)
    padded = np.pad(data.images.reshape(-1, digits.SIDE, digits.SIDE), ((0, 0), (1, 1), (1, 1)))
    copies = images.reshape(digit_training.COPIES, len(padded), digits.SIDE, digits.SIDE)
    fits = np.array(
        [
            (copies == padded[:, down : down + digits.SIDE, right : right + digits.SIDE]).all(axis=(2, 3))
            for down, right in np.ndindex(3, 3)
        ]
    )
    assert fits.any(axis=0).all()
    assert len(np.unique(fits.argmax(axis=0))) == 9
    np.testing.assert_array_equal(labels.argmax(axis=1), np.tile(data.labels, digit_training.COPIES))
    np.testing.assert_array_equal(labels.sum(axis=1), 1)


Batch = dict[str, np.ndarray]


def drawn(page: Page, task: str, epochs: int) -> list[list[Batch]]:
    """The batches that training begins with: drawn once more, by the page's own program."""
    answer = page.evaluate(
        """async ([task, epochs]) => {
            const { Batches } = await import("/batches.js");
            const { loadSetup } = await import("/loading.js");
            const setup = await loadSetup(task);
            const { learned } = setup.arrays;
            const [name] = Object.keys(learned);
            // The numbers of the samples in place of these: their arrays would take long to send.
            const count = learned[name].dims[0];
            const data = BigInt64Array.from({ length: count }, (_, index) => BigInt(index));
            const batches = new Batches({ numbers: { type: "int64", data, dims: [count] } }, setup);
            const next = () => Array.from(batches.next().numbers.data, Number);
            return Array.from({ length: epochs }, () => Array.from({ length: setup.stepsPerEpoch }, next));
        }""",
        [task, epochs],
    )
    made = tasks.all_tasks()[task]
    places = made.setup["arrays"]["learned"]
    arrays = {
        name: np.frombuffer(made.data, place["type"], int(np.prod(place["dims"])), place["offset"]).reshape(
            place["dims"]
        )
        for name, place in places.items()
    }
    return [[{name: array[numbers] for name, array in arrays.items()} for numbers in batches] for batches in answer]
