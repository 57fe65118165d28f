"""Attributes that go together, such as those of a window."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Settings:
    """A base of dataclasses that have the attributes of a call among their fields.

    Attributes:
        NAMES: of the fields that are attributes.
    """

    NAMES: ClassVar[tuple[str, ...]]

    @property
    def values(self) -> tuple[Any, ...]:
        """In the order of NAMES."""
        return tuple(getattr(self, name) for name in self.NAMES)

    @property
    def attributes(self) -> dict[str, Any]:
        """By name."""
        return dict(zip(self.NAMES, self.values, strict=True))
