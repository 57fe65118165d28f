"""The `reduction` attribute of losses."""

import enum


class Divisor(enum.IntEnum):
    """Divisor of the terms of an elementwise op."""

    NONE = 0
    SIZE = 1  # number of elements of the index space
    BATCH = 2  # length of its first axis


class Reduction(enum.IntEnum):
    """Values of the `reduction` attribute; also constructed from a name: `Reduction("mean")`."""

    NONE = 0
    MEAN = 1
    SUM = 2
    BATCHMEAN = 3

    @classmethod
    def _missing_(cls, value: object) -> "Reduction | None":
        return cls.__members__.get(value.upper()) if isinstance(value, str) else None

    @property
    def divisor(self) -> Divisor:
        return {Reduction.MEAN: Divisor.SIZE, Reduction.BATCHMEAN: Divisor.BATCH}.get(self, Divisor.NONE)
