"""The console of the command line: what models call things is printed without effect on the terminal."""

from __future__ import annotations

import unicodedata
from typing import Any

from rich.console import Console

INVISIBLE = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Characters that show nothing, but that Unicode counts among letters, marks and symbols."""


def escaped(text: str) -> str:
    """Text in one line that shows each character: those that would not be seen, or act, are as in a Python string.

    Among them are control characters, line breaks, and the format characters that reverse the direction of writing.
    """
    return "".join(c if _is_seen(c) else c.encode("unicode_escape").decode() for c in text)


def _is_seen(character: str) -> bool:
    is_selector = "VARIATION SELECTOR" in unicodedata.name(character, "") if character > "\u17ff" else False
    return character.isprintable() and character not in INVISIBLE and not is_selector


class LineConsole(Console):
    """A console that prints each text it is given as one line, escaped."""

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(escaped(o) if isinstance(o, str) else o for o in objects), **how)
