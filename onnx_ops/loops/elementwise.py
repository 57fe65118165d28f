"""How an elementwise op is declared: a loop over plain arrays, and how each input takes part in the shapes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import TensorProto

from onnx_ops.core.call import Call
from onnx_ops.core.reduction import Divisor
from onnx_ops.core.types import MAX_RANK, Shape, TensorType, promote
from onnx_ops.loops.space import Role

DOUBLE = TensorProto.DOUBLE

Core = Callable[[Any, Any, int, Any], None]
Prepare = Callable[[Any, int, Any], None]


@dataclass(frozen=True)
class Elementwise:
    """An op that computes a term of each set of elements that broadcasting puts together; an output element is one
    term, or a sum of terms.

    Attributes:
        roles: how each input takes part in the shapes, by name of the input.
        core: the loop for given attributes: core(operands, out, count, parameters). operands[i] is the i-th input as
            `count` numbers of the computing dtype (float64 if an input is, else float32), one that was left out as
            ones; parameters[0] is the reciprocal of the divisor, then come `parameters`. It writes out[0:count].
        output_dtype: the input that has the output's dtype; None: the dtype that all inputs promote to.
        output_like: the input that has the output's shape; terms are summed over the axes along which it was broadcast.
            None: there is no such input, and the output has the broadcast shape.
        parameters: attributes as numbers for the core.
        divisor: what terms are divided by, for given attributes.
        check: refuses attributes.
        ranks: least and greatest rank of the index space.
        prepare: works over the inputs of role CHANNEL before the core sees them, in place, in float64:
            prepare(channel_inputs, channels, count), where count[0] is the sum of the input of role COUNT.
        core_narrow: the core for 16-bit outputs, which need fewer exact digits, so that it can be faster.
        light: whether, for given attributes, the core does so little work that converting 16-bit numbers one by one
            inside it is fastest. For a core that does more, whole chunks are converted before it runs.
        core_uniform: the core, if there is one for given attributes, for a stretch of elements on which each input
            named in `uniform` has a single value. It reads element 0 of those inputs only.
    """

    roles: Mapping[str, Role]
    core: Callable[[Mapping[str, Any]], Core]
    output_dtype: str | None
    output_like: str | None = None
    parameters: Callable[[Mapping[str, Any]], Sequence[float]] = field(default=lambda attributes: ())
    divisor: Callable[[Mapping[str, Any]], Divisor] = field(default=lambda attributes: Divisor.NONE)
    check: Callable[[Call], None] = field(default=lambda call: None)
    ranks: tuple[int, int] = (0, MAX_RANK)
    prepare: Prepare | None = None
    core_uniform: Callable[[Mapping[str, Any]], Core | None] = field(default=lambda attributes: None)
    uniform: tuple[str, ...] = ()
    core_narrow: Core | None = None
    light: Callable[[Mapping[str, Any]], bool] = field(default=lambda attributes: False)

    @property
    def typed_inputs(self) -> tuple[str, ...]:
        """The inputs that determine the output's dtype."""
        return (self.output_dtype,) if self.output_dtype else self._with(Role.SHAPE)

    @functools.cached_property
    def _by_role(self) -> dict[Role, tuple[str, ...]]:
        return {role: tuple(name for name, own in self.roles.items() if own & role) for role in Role}

    def _with(self, role: Role) -> tuple[str, ...]:
        return self._by_role[role]

    def infer(self, call: Call) -> TensorType:
        """Dtype and shape of the output; refuses what the op does not compute."""
        call.check()
        self.check(call)
        space = self._index_space(call)
        for name in self._with(Role.INTO):
            call.broadcast_to(name, space, self._space_text)
        for name in self._with(Role.SAME):
            call.same_shape(name, space, f"the shape of {self._space_text}")
        for name in self._with(Role.CHANNEL):
            channels = (None,) if space is None else (space[1],)
            call.same_shape(name, channels, f"one number per channel (axis 1) of {self._space_text}")
        dtype = promote(map(call.dtype, self.typed_inputs))
        return TensorType(dtype, call.shape(self.output_like) if self.output_like else space)

    @functools.cached_property
    def _space_text(self) -> str:
        names = [f"'{name}'" for name in self._with(Role.SHAPE)]
        return names[0] if len(names) == 1 else f"the broadcast of {' and '.join(names)}"

    def _index_space(self, call: Call) -> Shape | None:
        shaping = self._with(Role.SHAPE)
        space = call.shape(shaping[0]) if len(shaping) == 1 else call.broadcast(*shaping)
        if space is not None and not self.ranks[0] <= len(space) <= self.ranks[1]:
            raise call.shape_error(shaping[0], f"{self.ranks[0]} to {self.ranks[1]} dimensions")
        if space is not None and self._with(Role.CHANNEL) and space[1] == 0:
            raise call.shape_error(shaping[0], "at least one channel (axis 1)")
        return space

    def check_values(self, call: Call, arrays: Sequence[np.ndarray | None]) -> None:
        """Refuses nothing: an elementwise op computes all values."""

    def _computing_dtype(self, call: Call) -> int:
        """float64 if an input is, else float32; a 16-bit dtype for a light core that reads and writes nothing else."""
        read = {call.dtype(n) for n, role in self.roles.items() if call.present(n) and not role & Role.COUNT}
        if DOUBLE in read:
            return DOUBLE
        read = {call.dtype(n) for n, role in self.roles.items() if call.present(n) and not role & Role.UNREAD}
        output = promote(map(call.dtype, self.typed_inputs))
        return output if read == {output} and output is not None and self.light(call.attributes) else TensorProto.FLOAT

    def record(self, call: Call) -> dict[str, Any]:
        """The fields of the native kernel for a call of known dtypes."""
        from onnx_ops.loops.layout import MAX_INPUTS
        from onnx_ops.runtime import elementwise as engine
        from onnx_ops.runtime.compiler import compile_native as compiled
        from onnx_ops.runtime.launch import ALONE, PLAN, TASK

        dtype = self._computing_dtype(call)
        core, parameters = self.core(call.attributes), self.parameters(call.attributes)
        if self.core_narrow and promote(map(call.dtype, self.typed_inputs)) not in (TensorProto.FLOAT, DOUBLE):
            core = self.core_narrow
        sums = self.output_like is not None and len(self._with(Role.SHAPE)) > 1
        roles = list(self.roles.values())
        fields: dict[str, Any] = {
            "parameters": np.pad(np.array(parameters, np.float64), (0, 4 - len(parameters))),
            "plan": compiled(engine.plan, PLAN),
            "task": compiled(engine.task, TASK),
            "core": compiled(core, engine.core_signature(dtype)),
            "load": compiled(engine.load, engine.LOAD[dtype]),
            "store": compiled(engine.store, engine.STORE[dtype]),
            "compute_type": dtype,
            "role": np.pad(np.array(roles, np.int64), (0, MAX_INPUTS - len(roles))),
            "output_like": list(self.roles).index(self.output_like) if sums and self.output_like else -1,
            "divisor": self.divisor(call.attributes),
            "ranks": self.ranks,
        }
        if sums:
            fields |= {
                "core_wide": compiled(core, engine.core_signature(DOUBLE)),
                "load_wide": compiled(engine.load, engine.LOAD[DOUBLE]),
                "store_wide": compiled(engine.store, engine.STORE[DOUBLE]),
                "finish": compiled(engine.finish, ALONE),
            }
        if self.prepare:
            fields |= {
                "begin": compiled(engine.begin, ALONE),
                "prepare": compiled(self.prepare, engine.PREPARE),
            }
        if core_uniform := self.core_uniform(call.attributes):
            uniform = [name in self.uniform for name in self.roles]
            fields["core_uniform"] = compiled(core_uniform, engine.core_signature(dtype))
            fields["uniform"] = np.pad(np.array(uniform, np.int64), (0, MAX_INPUTS - len(uniform)))
        return fields
