"""The index space of an op: the shape its loop runs over, and how each input broadcasts into it.

Shape inference and compiled kernels both use it.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Mapping
from dataclasses import dataclass

from onnx_ops.core.call import Call
from onnx_ops.core.types import MAX_RANK, Shape, promote


class Role(enum.IntFlag):
    """How an input takes part in the index space."""

    SHAPE = 1  # all inputs with this role broadcast to the index space
    INTO = 2  # broadcasts to the index space
    SAME = 4  # has the shape of the index space
    CHANNEL = 8  # shape (C,), C = size of axis 1
    COUNT = 16  # any shape; only the sum of its elements is used
    UNREAD = 32  # the core does not read its values


@dataclass(frozen=True)
class IndexSpace:
    """The roles of an op's inputs in its index space.

    Attributes:
        roles: by name of the input, in the order of the schema.
        ranks: least and greatest rank of the space.
    """

    roles: Mapping[str, Role]
    ranks: tuple[int, int] = (0, MAX_RANK)

    def shape(self, call: Call) -> Shape | None:
        """The shape of the space, None if unknown; raises OpError for inputs that do not fit."""
        space = call.broadcast(*self.having(Role.SHAPE))
        if space is not None:
            first = self.having(Role.SHAPE)[0]
            if not self.ranks[0] <= len(space) <= self.ranks[1]:
                raise call.shape_error(first, f"{self.ranks[0]} to {self.ranks[1]} dimensions")
            if self.ranks[0] >= 2 and space[1] == 0:
                raise call.shape_error(first, "at least one channel (axis 1)")
        for name in self.having(Role.INTO):
            call.broadcast_to(name, space, self._text)
        for name in self.having(Role.SAME):
            call.same_shape(name, space, f"the shape of {self._text}")
        for name in self.having(Role.CHANNEL):
            channels = (None,) if space is None else (space[1],)
            call.same_shape(name, channels, f"one number per channel (axis 1) of {self._text}")
        return space

    def having(self, role: Role) -> tuple[str, ...]:
        """Names of the inputs with a role."""
        return self._by_role[role]

    def promoted(self, call: Call, *leaving_out: Role) -> int | None:
        """The dtype that the present inputs promote to, except those with a role in `leaving_out`."""
        roles = self.roles.items()
        return promote(call.dtype(n) for n, own in roles if call.present(n) and not any(own & r for r in leaving_out))

    @functools.cached_property
    def _by_role(self) -> dict[Role, tuple[str, ...]]:
        return {role: tuple(name for name, own in self.roles.items() if own & role) for role in Role}

    @functools.cached_property
    def _text(self) -> str:
        names = [f"'{name}'" for name in self.having(Role.SHAPE)]
        return names[0] if len(names) == 1 else f"the broadcast of {' and '.join(names)}"
