"""The demo: its table, its messages on failures, and the page that it writes."""

from __future__ import annotations

import re
import types
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from scripts import demo
from scripts.trainings.command import Options, Result


class Sources(HTMLParser):
    """What a page loads, and its words."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.words = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.words += data


def training(name: str, *, reached: bool = True, difference: float = 2e-7) -> types.ModuleType:
    """A training that learns nothing."""
    module = types.ModuleType(f"scripts.trainings.{name}", f"What {name} is.\n\nMore of it.")

    def run(options: Options) -> Result:
        assert options.quick
        picture = options.folder / "picture.png"
        Figure((1, 1)).savefig(picture)
        return Result(f"Op of {name}", f"<{name}>", "97 % & more", reached, difference, {picture: "It is black."})

    module.run = run  # type: ignore[attr-defined]
    return module


def run(monkeypatch: pytest.MonkeyPatch, folder: Path, *trainings: types.ModuleType) -> int:
    monkeypatch.setattr(demo, "TRAININGS", trainings)
    return demo.main(["--out", str(folder)])


def test_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Plain lines where there is no terminal: no colours, none too long to read, paths apart."""
    assert run(monkeypatch, tmp_path, training("one"), training("two")) == 0
    output = capsys.readouterr()
    assert output.err == ""
    assert not re.search(r"[\r\x1b]", output.out)
    assert all(len(line) <= 100 for line in output.out.splitlines() if str(tmp_path) not in line)
    assert "one: What one is." in output.out
    rows = [line.split() for line in output.out.splitlines() if "Op of" in line]
    assert rows == [["Op", "of", name, f"<{name}>", "97", "%", "&", "more", "0", "2e-07"] for name in ("one", "two")]


def test_the_page_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, tmp_path, training("one"), training("two")) == 0
    page = Sources()
    page.feed((tmp_path / "index.html").read_text(encoding="utf-8"))
    assert page.loaded[:2] == ["#one", "#two"]
    assert len(page.loaded) == 4
    assert all(source.startswith("data:image/png;base64,") for source in page.loaded[2:])
    assert "<two>" in page.words
    assert "97 % & more" in page.words
    assert "It is black." in page.words


@pytest.mark.parametrize(
    ("missing", "said"),
    [
        ({"reached": False}, "two: 97 % & more is below its target"),
        ({"difference": 1e-3}, "two: the first losses differ from PyTorch's by 1.0e-03"),
        ({"difference": float("nan")}, "two: the first losses differ from PyTorch's by nan"),
    ],
)
def test_what_is_short_fails(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: dict[str, float],
    said: str,
) -> None:
    assert run(monkeypatch, tmp_path, training("one"), training("two", **missing)) == 1  # type: ignore[arg-type]
    assert f"FAILED: {said}" in capsys.readouterr().out
    assert (tmp_path / "index.html").exists()
