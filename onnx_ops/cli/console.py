"""The console of the command line, which escapes names from models so that they cannot control the terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

from rich.console import Console

INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Characters without a glyph that Unicode classifies as letters, marks or symbols."""


def escaped(text: str) -> str:
    """Text in one line, with invisible characters escaped as in a Python string.

    Among them are control characters, line breaks, and format characters that reverse the direction of text.
    """
    return "".join(c if _is_visible(c) else c.encode("unicode_escape").decode() for c in text)


def _is_visible(character: str) -> bool:
    is_selector = "VARIATION SELECTOR" in unicodedata.name(character, "") if character > "\u17ff" else False
    return character.isprintable() and character not in INVISIBLE and not is_selector


class LineConsole(Console):
    """A console that escapes each string and prints it as one line."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(escaped(o) if isinstance(o, str) else o for o in objects), **how)
