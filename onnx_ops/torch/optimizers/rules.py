"""The table of update rules, by class of optimizer.

The formulas of torch.optim's classes are those of their `_single_tensor_` functions, which PyTorch runs on a CPU.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection

import torch

from onnx_ops.torch.base.errors import CaptureError
from onnx_ops.torch.optimizers.adafactor import ADAFACTOR
from onnx_ops.torch.optimizers.adagrad import ADADELTA, ADAGRAD, RMSPROP
from onnx_ops.torch.optimizers.adam import ADAM, ADAMAX, NADAM, RADAM
from onnx_ops.torch.optimizers.master_weights import MasterWeights, with_master_weights
from onnx_ops.torch.optimizers.muon import MUON
from onnx_ops.torch.optimizers.rprop import RPROP
from onnx_ops.torch.optimizers.rule import Initial, Rule, Update
from onnx_ops.torch.optimizers.sgd import ASGD, SGD

Kind = type[torch.optim.Optimizer]

OF_TORCH: dict[Kind, Rule] = {
    torch.optim.ASGD: ASGD,
    torch.optim.Adadelta: ADADELTA,
    torch.optim.Adafactor: ADAFACTOR,
    torch.optim.Adagrad: ADAGRAD,
    torch.optim.Adam: ADAM,
    torch.optim.AdamW: ADAM,
    torch.optim.Adamax: ADAMAX,
    torch.optim.Muon: MUON,
    torch.optim.NAdam: NADAM,
    torch.optim.RAdam: RADAM,
    torch.optim.RMSprop: RMSPROP,
    torch.optim.Rprop: RPROP,
    torch.optim.SGD: SGD,
}
_registered: dict[Kind, Rule] = {}


def register_optimizer(optimizer: Kind, *, initial: Initial, update: Update, shared: Collection[str] = ()) -> None:
    """Make a class of optimizers one that `training_step` captures, by its update as a function of tensors.

    Both functions are called for one parameter at a time. `group` has the options of the parameter's group in
    `optimizer.param_groups`, tensors of one element as numbers; they are constants of the step, except for the learning
    rate, `group["lr"]`, whose current value is an argument. The update is traced: it returns new tensors, changes none
    of its arguments, and branches on no values of tensors. `training_step` compares two steps with the optimizer's own
    `step`, unless `check=False`.

    Args:
        optimizer: the class. An earlier rule of it is replaced. Subclasses that override only `__init__` have the rule
            too.
        initial: `initial(parameter, group)` returns the state before the first step, a dict of tensors by the keys of
            `optimizer.state[parameter]`.
        update: `update(parameter, gradient, state, learning_rate, group)` returns the new parameter, and the new state,
            with the keys, shapes and dtypes of the old one. The gradient has the shape and dtype of the parameter, is
            clipped if the step clips, and negated if the group has a true `maximize`. The learning rate is a scalar of
            float32, or of float64 if the model has such parameters.
        shared: keys of scalars that are equal for all parameters of a group that have been updated together, such as a
            count of steps. Those with equal values are one input of the step.

    Raises:
        CaptureError: no subclass of torch.optim.Optimizer, or a class of torch.optim that has a rule.
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise CaptureError(f"the optimizer to register is {optimizer!r}, expected a subclass of torch.optim.Optimizer")
    if optimizer in OF_TORCH:
        raise CaptureError(f"torch.optim.{optimizer.__name__} has a rule already; register a subclass")
    if isinstance(shared, str):
        raise CaptureError(f"`shared` is the string '{shared}', expected a collection of keys, such as ('{shared}',)")
    _registered[optimizer] = Rule(initial, update, shared=frozenset(shared), elementwise=False)


def rule_of(optimizer: torch.optim.Optimizer) -> Rule:
    """The rule of an optimizer's class, or of the base class whose methods it inherits.

    Raises:
        CaptureError: there is no rule, the class overrides methods of the base class, or the optimizer has hooks.
    """
    if hooks := [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]:
        raise CaptureError(
            f"the {type(optimizer).__name__} calls {hooks[0]!r} with each step, a hook that a capture would not follow:"
            " remove it"
        )
    if type(optimizer) is MasterWeights:
        return with_master_weights(_rule_of(optimizer.kind))
    return _rule_of(type(optimizer))


def _full_name(kind: Kind) -> str:
    """With the module: other packages have optimizers of the same names as those of torch.optim."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _rule_of(kind: Kind) -> Rule:
    """As `rule_of`, of a class."""
    rules = OF_TORCH | _registered
    base = next((base for base in kind.__mro__ if base in rules), None)
    if base is None:
        known = ", ".join(sorted(rule.__name__ for rule in OF_TORCH))
        others = "".join(sorted(f", {_full_name(rule)}" for rule in _registered))
        raise CaptureError(
            f"the optimizer is a {_full_name(kind)}; what can be captured is, of torch.optim, {known}{others}. Register"
            " another one with onnx_ops.torch.register_optimizer"
        )
    own = sorted(name for name in dir(base) if not name.startswith("__") and _method(kind, name) != _method(base, name))
    if own:
        raise CaptureError(
            f"the optimizer is a {_full_name(kind)}, which has its own {', '.join(own)} in place of those of"
            f" {base.__name__}; a capture would not follow them. Pass {base.__name__} itself, register"
            f" {kind.__name__} with onnx_ops.torch.register_optimizer, or capture `gradients` alone and update the"
            " parameters outside of the graph"
        )
    return rules[base]


def _method(kind: Kind, name: str) -> Callable[..., object] | None:
    """A method of a class without decorators, such as torch.optim's profiler of `step`; None for another attribute."""
    return inspect.unwrap(getattr(kind, name)) if callable(getattr(kind, name)) else None
