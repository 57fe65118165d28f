"""Declarations of kernels: a loop over an index space, or tasks with code of their own.

`onnx_ops.runtime.loops` compiles them: it handles strides, broadcasting, dtypes, threads and sums.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onnx_ops.core.reduction import Divisor
from onnx_ops.core.space import IndexSpace, Role
from onnx_ops.loops.primitives import Array
from onnx_ops.loops.records import Job, Kernel

Operands = Sequence[Array]

Core = Callable[[Operands, Array, int, Array], None]
"""core(operands, out, count, parameters).

operands[i]: (count,) values of input i in the computing dtype; the default for an omitted input. parameters[0] is the
reciprocal of the divisor, followed by those of the loop. Writes out[0:count], or out[k][0:count] for output k of an op
with several outputs.
"""
Prepare = Callable[[Operands, int, Array], None]
"""prepare(channel_inputs, channels, parameters).

Transforms the inputs of role CHANNEL in place, in float64, before any core runs. parameters[0] is the sum of the inputs
of role COUNT, followed by those of the loop.
"""
Finish = Callable[[Operands, Operands, Operands, int, int, Array], None]
"""finish(totals, channel_inputs, results, kept, count, parameters).

totals[k][i]: float64 sum of term k at kept index i, over `count` elements. channel_inputs[j][i]: float64, input j of
role CHANNEL at that index; the pivot, if any, follows them. Writes results[j][0:kept], float64, for output j.
"""


class Kept(enum.IntEnum):
    """Axes of the index space that a sum keeps."""

    NOTHING = 0  # scalar result, divided by the divisor of the loop
    CHANNELS = 1  # axis 1
    LIKE_INPUT = 2  # axes along which an input is not broadcast


@dataclass(frozen=True)
class Sums:
    """Sums of terms, in float64 and in a fixed order.

    Attributes:
        core: writes float64 terms: core(operands, out, count, parameters), term k of element i at out[k*CHUNK + i].
        compute: dtype of its operands: FLOAT, DOUBLE or, as in `Loop`, a 16-bit dtype. Per-channel operands and the
            pivot are read with `primitives.of_channels`.
        kept: axes that are not summed over.
        terms: number of sums.
        like: input whose axes are kept, for Kept.LIKE_INPUT.
        totals: writes the sum of term k over the whole chunk at out[k], adding with `primitives.add_any_order`; used in
            place of `core` for contiguous elements, which belong to one channel where channels are kept.
        finish: computes the outputs from the sums; None: the one sum is the one output.
        pivot: input of which a representative element per kept index is passed to the core as one more operand, to
            subtract; not with Kept.LIKE_INPUT.
    """

    core: Core
    compute: int
    kept: Kept
    terms: int = 1
    like: str | None = None
    totals: Core | None = None
    finish: Finish | None = None
    pivot: str | None = None


@dataclass(frozen=True)
class Loop:
    """One term per index of a space; outputs are the terms, or sums of them.

    Attributes:
        space: how the inputs make up the index space.
        compute: computing dtype: FLOAT or DOUBLE; a 16-bit dtype for a core so light that converting each element in it
            is fastest, all of whose operands have that dtype.
        core: computes terms as outputs; None if outputs are always sums.
        sums: for outputs that are sums. With Kept.LIKE_INPUT, `core` is used where there is nothing to sum.
        divisor: divisor of the terms.
        parameters: at most four numbers, passed to the core.
        prepare: transforms the inputs of role CHANNEL.
        core_uniform: used instead of `core` for blocks in which each input in `uniform` has a single value; reads
            element 0 of those inputs only.
        memory_bound: whether memory bandwidth limits the core. Its work is split into few tasks, and results too large
            for the cache are written with non-temporal stores.
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

    @property
    def in_place(self) -> tuple[str, ...]:
        """Inputs whose memory an output may have if it has their shape: the index space has that shape too."""
        if self.sums is None:
            return tuple(name for name, role in self.space.roles.items() if role & (Role.SHAPE | Role.INTO | Role.SAME))
        shaping = self.space.having(Role.SHAPE)
        if self.sums.kept is not Kept.LIKE_INPUT or len(shaping) > 2:
            return ()
        return tuple(name for name in shaping if name != self.sums.like or self.space.roles[name] & Role.UNREAD)


@dataclass(frozen=True)
class Layout:
    """What the tasks of a kernel share, computed once per run: a record at the start of its scratch memory.

    Attributes:
        write: write(address, kernel, job): writes the record, and to the job the shapes of the outputs and the numbers
            of tasks and of bytes of scratch memory, including those of the record; returns whether the shapes of the
            inputs fit. In the plan the scratch memory has address 0, as there is none yet.
        size: bytes of the record.
    """

    write: Callable[[int, Kernel, Job], bool]
    size: int


@dataclass(frozen=True)
class Tasks:
    """Native code of an op, over the records KERNEL and JOB of `onnx_ops.loops.records`.

    Attributes:
        plan: plan(kernel, job): checks the inputs, sets output shapes and the number of tasks; returns OK or REFUSED.
            With a `Layout` its function does, which also runs in place of `begin`.
        task: task(job, number), once per task, on any thread.
        begin: begin(kernel, job), before the first task.
        finish: finish(kernel, job), after the last task.
        prepare: prepare(job, number), `prepare_tasks` of the job times, on any thread, between `begin` and the first
            task.
        compute: FLOAT or DOUBLE: `task` and `prepare` are compiled for this computing dtype, whose NumPy dtype is their
            last argument.
        in_place: names of an input and an output that may have its memory, if dtypes and shapes agree. Tasks read what
            they need of such an input before they write there, as far as `in_place` of the job is set.
    """

    plan: Callable[[Kernel, Job], int] | Layout
    task: Callable[..., None]
    begin: Callable[[Kernel, Job], None] | None = None
    finish: Callable[[Kernel, Job], None] | None = None
    prepare: Callable[..., None] | None = None
    compute: int | None = None
    in_place: tuple[tuple[str, str], ...] = ()
