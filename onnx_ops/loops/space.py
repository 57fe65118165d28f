"""How the inputs of an elementwise op take part in its shapes. Shape inference and the native code both use this.

An elementwise op computes one term for each index of its index space: the shape that its main inputs broadcast to.
"""

import enum


class Role(enum.IntFlag):
    """How an input takes part in the shapes of an elementwise op."""

    SHAPE = 1  # all inputs with this role broadcast to the index space
    INTO = 2  # broadcasts to the index space
    SAME = 4  # has the shape of the index space
    CHANNEL = 8  # 1-D, one number per index of axis 1
    COUNT = 16  # any shape; the sum of all elements counts
    UNREAD = 32  # only the shape enters, not the values
