"""The names of an adapter's parameters in the files of peft, the library of low-rank and other adapters."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from onnx_ops.training.errors import StepError

REPLACED = "modules_to_save"
"""The module that holds, under the adapter's name, the trained copy of a module; files have the module's own name."""
MAGNITUDES = "lora_magnitude_vector"
"""The module of DoRA whose only parameter files name like the module."""


def peft_name(name: str, adapter: str) -> str:
    """The name that a parameter has in adapter_model.safetensors.

    Args:
        name: in the state_dict of the model, such as `base_model.model.q.lora_A.default.weight`.
        adapter: name of the adapter, such as `default`.

    Returns:
        The name without that of the adapter, as in `peft.get_peft_model_state_dict`, such as
        `base_model.model.q.lora_A.weight`; `name` itself if the adapter's name is not in it.
    """
    parts = name.split(".")
    for place in range(len(parts) - 2):
        if parts[place : place + 2] == [REPLACED, adapter]:
            return ".".join(parts[:place] + parts[place + 2 :])
    if parts[-1] == adapter:
        return ".".join(parts[:-1])
    if parts[-2:-1] == [adapter]:
        del parts[-2]
        return ".".join(parts[:-1] if parts[-2:] == [MAGNITUDES, "weight"] else parts)
    return name


def adapter_names(parameters: Iterable[str], trained: Collection[str], adapter: str) -> dict[str, str]:
    """The parameters of an adapter: those that are trained, and those that have the adapter's name.

    Returns:
        Their names, by those in files of peft.

    Raises:
        StepError: two parameters have the same name in a file.
    """
    names: dict[str, str] = {}
    for name in parameters:
        filed = peft_name(name, adapter)
        if filed == name and name not in trained:
            continue
        if filed in names:
            raise StepError(
                f"'{names[filed]}' and '{name}' are both '{filed}' in the file of an adapter: rename one of the modules"
            )
        names[filed] = name
    return names
