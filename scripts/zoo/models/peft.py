"""Adapters of peft on small models of transformers."""

from __future__ import annotations

from typing import Any

from scripts.zoo.entries import Case, Models
from scripts.zoo.models import transformers

MODELS = Models("peft")


def _adapted(case: Case, config: Any) -> Case:
    import peft

    return Case(peft.get_peft_model(case.model, config), case.loss, case.batch, case.axes)


@MODELS("LoRA on GPT-2")
def lora_gpt2() -> Case:
    import peft

    return _adapted(transformers.gpt2(), peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))


@MODELS("LoRA on Llama")
def lora_llama() -> Case:
    import peft

    return _adapted(transformers.llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))


@MODELS("DoRA on Llama")
def dora_llama() -> Case:
    import peft

    return _adapted(transformers.llama(), peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=True))


@MODELS("IA3 on Llama")
def ia3_llama() -> Case:
    import peft

    return _adapted(
        transformers.llama(), peft.IA3Config(target_modules=["k_proj", "down_proj"], feedforward_modules=["down_proj"])
    )


@MODELS("Prompt tuning of GPT-2")
def prompt_gpt2() -> Case:
    import peft

    return _adapted(transformers.gpt2(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
