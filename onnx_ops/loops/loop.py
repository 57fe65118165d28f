"""What an op hands to the runtime to be compiled: a loop over an index space, or tasks of its own.

Nothing here is native. The runtime (`onnx_ops.runtime.loops`) finds out how each operand lies in memory, brings it to
the loop in chunks, and does with the terms what is said here.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnx_ops.core.reduction import Divisor
from onnx_ops.core.space import IndexSpace

Core = Callable[[Any, Any, int, Any], None]
"""core(operands, out, count, parameters).

operands[i] is the i-th input as `count` numbers of the computing dtype; one that was left out, as the number that it
stands for. parameters[0] is the reciprocal of the divisor, then come those of the loop. It writes out[0:count], or
out[k][0:count] for the k-th output of an op that has several.
"""
Prepare = Callable[[Any, int, Any], None]
"""prepare(channel_inputs, channels, parameters).

Works over the inputs of role CHANNEL, in place and in float64, before a core sees them. parameters[0] is the sum of the
inputs of role COUNT, then come those of the loop.
"""
Finish = Callable[[Any, Any, Any, int, int, Any], None]
"""finish(totals, channel_inputs, results, kept, count, parameters).

totals[k][i] is the sum of term k at the i-th of `kept` places, channel_inputs[j][i] the j-th input of role CHANNEL
there, both float64, and `count` the number of elements summed for each. It writes results[j][0:kept], float64, for the
j-th output. The pivot, if there is one, comes after the channel inputs.
"""


class Kept(enum.IntEnum):
    """Which axes of the index space are left after a sum."""

    NOTHING = 0  # the result is a scalar
    CHANNELS = 1  # axis 1
    LIKE_INPUT = 2  # those along which an input is not broadcast


@dataclass(frozen=True)
class Sums:
    """Terms are added up, in float64 and always in the same order.

    Attributes:
        core: writes float64 terms: core(operands, out, count, parameters), term k of an element i at out[k*CHUNK + i].
        compute: the dtype of its operands: FLOAT or DOUBLE; or a 16-bit dtype, as in `Loop`. What has one number per
            channel, and the pivot, is read with `primitives.of_channels`.
        kept: which axes are not summed over.
        terms: how many sums there are.
        like: the input whose axes are kept, for Kept.LIKE_INPUT.
        totals: writes the sum of term k over the whole chunk at out[k], adding with `primitives.add_any_order`. If
            there is one, it serves sums over elements that follow each other; no term need be written then. All of
            them belong to one channel where channels are kept.
        finish: makes the outputs of the sums; None: the one sum is the one output.
        divided: whether the one sum is divided by the divisor of the loop.
        pivot: an input of which one typical number for each kept place is given to the core as one more operand, so
            that it can take differences from that; not with Kept.LIKE_INPUT.
    """

    core: Core
    compute: int
    kept: Kept
    terms: int = 1
    like: str | None = None
    totals: Core | None = None
    finish: Finish | None = None
    divided: bool = False
    pivot: str | None = None


@dataclass(frozen=True)
class Loop:
    """One term for each index of a space; the outputs are the terms themselves, or sums of them.

    Attributes:
        space: how the inputs make up the index space.
        compute: the computing dtype: FLOAT or DOUBLE; a 16-bit dtype for a core that does so little work that
            converting numbers one by one inside it is fastest, all of whose operands have that dtype.
        core: the loop for outputs that are terms; None if they are always sums.
        sums: for outputs that are sums. With Kept.LIKE_INPUT, `core` serves where nothing is to be summed.
        divisor: what terms are divided by.
        parameters: numbers for the core, at most four.
        prepare: works over the inputs of role CHANNEL.
        core_uniform: the core for a stretch of elements on which each input named in `uniform` has a single value. It
            reads element 0 of those inputs only.
        memory_bound: whether the core does so little that it waits for memory alone. Its work is cut into few tasks.
            Where no cache holds its results, they are written in a way that is faster, but during which nothing can be
            computed.
    """

    space: IndexSpace
    compute: int
    core: Core | None = None
    sums: Sums | None = None
    divisor: Divisor = Divisor.NONE
    parameters: tuple[float, ...] = ()
    prepare: Prepare | None = None
    core_uniform: Core | None = None
    uniform: tuple[str, ...] = ()
    memory_bound: bool = False


@dataclass(frozen=True)
class Tasks:
    """Native code of an op's own, over the records of `onnx_ops.loops.records`.

    Attributes:
        plan: plan(kernel, job): checks the inputs, sets the shapes of outputs and the number of tasks; answers OK or
            REFUSED.
        task: task(job, number), for each task, on any thread.
        begin: begin(kernel, job), alone before the first task.
        finish: finish(kernel, job), alone after the last.
    """

    plan: Callable[[int, int], int]
    task: Callable[[int, int], None]
    begin: Callable[[int, int], None] | None = None
    finish: Callable[[int, int], None] | None = None
