"""The public names, the signatures of functions and classes, and what public objects show of themselves.

If a change of public names is intended, replace the rows of the tables that the failing test lists, and say in
CHANGELOG.md what was before and what is now.
"""

from __future__ import annotations

import enum
import importlib
import importlib.util
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import steps
from onnx import TensorProto, parser

import onnx_ops
from onnx_ops.core.types import TensorType
from onnx_ops.training.step import summary

ROOT = Path(__file__).parents[2]
PUBLIC_MODULES = {"onnx_ops", "onnx_ops.torch", "onnx_ops.mpi"}

# Constants with their types, enumerations with their members, exceptions with their base classes, functions and classes
# with their parameters; of classes also their own methods and properties.
TABLES: dict[str, dict[str, str]] = {
    "onnx_ops": {
        "DOMAIN": "str",
        "OPS": "mappingproxy",
        "OPSET_VERSION": "int",
        "Error": "Exception",
        "InferenceSession": "(path_or_bytes, sess_options=None, providers=None, provider_options=None, **kwargs)",
        "InputRole": "PARAMETER BUFFER OPTIMIZER SEED SETTING",
        "KernelsUnavailableError": "Error, RuntimeError",
        "LinkError": "Error, ValueError",
        "ModelFileError": "Error, ValueError",
        "OpError": "Error, ValueError",
        "Reduction": "NONE MEAN SUM BATCHMEAN",
        "Status": "ACLNN_ERR_PARAM_NULLPTR ACLNN_ERR_PARAM_INVALID",
        "Step": "(roles, tied=<factory>, bounds=<factory>, ranges=(), conditions=())",
        "Step.of": "(model)",
        "Step.write_into": "(self, model)",
        "Step.names": "(self, *roles)",
        "Step.batch": "(self, model)",
        "Step.state": "(self, model)",
        "StateLostError": "StepError",
        "StepError": "Error, ValueError",
        "Trainer": (
            "(step, sess_options=None, providers=None, *, communicator=None, batch_dimension=None,"
            " synchronize_batch_norm=False, check_finite=True, keep_previous=False)"
        ),
        "Trainer.step": "(self, /, **batch)",
        "Trainer.batch_inputs": "property",
        "Trainer.accumulate": "(self, /, **batch)",
        "Trainer.evaluate": "(self, mode='eval', /, **batch)",
        "Trainer.predict": "(self, /, **inputs)",
        "Trainer.has_evaluation_graph": "property",
        "TrainerStep": "(model, state, batches, runner, session, reload)",
        "TrainerStep.step": "(self, /, **batch)",
        "TrainerStep.accumulate": "(self, /, **batch)",
        "TrainerStep.evaluate": "(self, mode='eval', /, **batch)",
        "TrainerStep.predict": "(self, /, **inputs)",
        "TrainerStep.export": "(self, path, *, averaged=False)",
        "TrainerStep.has_inference_graph": "property",
        "TrainerStep.has_evaluation_graph": "property",
        "TrainerStep.learning_rate": "property that can be set",
        "TrainerStep.state_dict": "(self)",
        "Trainer.has_inference_graph": "property",
        "Trainer.learning_rate": "property that can be set",
        "Trainer.state_dict": "(self)",
        "Trainer.load_state_dict": "(self, state, *, strict=True)",
        "Trainer.weights": "(self)",
        "Trainer.save": "(self, path, metadata=None, *, frozen=True)",
        "Trainer.load": "(self, path, *, strict=True)",
        "Trainer.load_weights": "(self, path, *, strict=True, cast=False)",
        "Trainer.save_weights": "(self, path)",
        "Trainer.save_adapter": "(self, path, adapter_name='default')",
        "Trainer.load_adapter": "(self, path, adapter_name='default')",
        "Trainer.export": "(self, path, *, averaged=False)",
        "ConstantLR": "(factor=0.3333333333333333, total_iters=5)",
        "ConstantLR.rates": "(self, base, step, monitored)",
        "CosineAnnealingLR": "(T_max=None, eta_min=0.0)",
        "CosineAnnealingLR.rates": "(self, base, step, monitored)",
        "Epoch": "(steps, learning_rate, training, validation)",
        "Epoch.metrics": "property",
        "LinearLR": "(start_factor=0.3333333333333333, end_factor=1.0, total_iters=5)",
        "LinearLR.rates": "(self, base, step, monitored)",
        "OneCycleLR": (
            "(max_lr, total_steps=None, pct_start=0.3, anneal_strategy='cos', div_factor=25.0, "
            "final_div_factor=10000.0, three_phase=False)"
        ),
        "OneCycleLR.rates": "(self, base, step, monitored)",
        "ReduceLROnPlateau": (
            "(mode='min', factor=0.1, patience=10, threshold=0.0001, threshold_mode='rel', cooldown=0, "
            "min_lr=0.0, eps=1e-08)"
        ),
        "ReduceLROnPlateau.rates": "(self, base, step, monitored)",
        "Schedule": "()",
        "Schedule.needs_length": "property",
        "Schedule.over": "(self, steps)",
        "Schedule.rates": "(self, base, step, monitored)",
        "Schedule.entry": "(self)",
        "SequentialLR": "(schedules, milestones)",
        "SequentialLR.needs_length": "property",
        "SequentialLR.over": "(self, steps)",
        "SequentialLR.rates": "(self, base, step, monitored)",
        "SequentialLR.entry": "(self)",
        "evaluate": "(trainer, data, *, batch_size=None, step='', cast=False, mode='eval')",
        "fit": (
            "(trainer, data, *, validation=None, epochs=None, batch_size=None, accumulate=None, step='', "
            "seed=None, shuffle=None, cast=False, learning_rate=None, schedule=None, "
            "validation_mode='eval', monitor=None, mode=None, patience=None, min_delta=None, "
            "checkpoint=None, best=None, resume=False, logs=(), tensorboard=None, progress=True)"
        ),
        "WorkerError": "Error, RuntimeError",
        "include_directory": "()",
        "inline": "(model)",
        "link": "(model)",
        "make_node": "(op_type, inputs, outputs, name=None, doc_string=None, **attributes)",
        "opset_import": "()",
        "reference_ops": "()",
        "register_kernels": "(options)",
        "run": "(op_type, /, *inputs, backend=None, dtype=None, **named)",
        "session_options": "()",
        "step_model": "(model, state, inference=None, evaluation=None)",
    },
    "onnx_ops.torch": {
        "Capture": "(model, state, inference, evaluation=None)",
        "Capture.save": "(self, path, *, external=False, frozen=None, prepared=False)",
        "CaptureError": "Error, ValueError",
        "MasterWeights": "(optimizer, params, **options)",
        "MasterWeights.step": "(self, closure=None)",
        "gradients": (
            "(model, loss, args, *, dynamic_shapes=None, opset_version=21, check=True, inference=True,"
            " evaluation=False, specialize=False)"
        ),
        "load_into_torch": "(state, model, optimizer=None, averaged=None)",
        "migrate": (
            "(model, loss, optimizer, *, output=None, trainable=None, clip_grad_norm=None, opset_version=21,"
            " check=True, evaluation=True)"
        ),
        "register_optimizer": "(optimizer, *, initial, update, shared=())",
        "state_from_torch": "(state, model, optimizer=None, averaged=None)",
        "training_step": (
            "(model, loss, args, optimizer, *, dynamic_shapes=None, clip_grad_norm=None, grad_scaler=None,"
            " averaged=None, opset_version=21, check=True, inference=True, evaluation=False, specialize=False)"
        ),
        "translation_table": "()",
        "whole_ops": "()",
    },
}


def described(name: str, value: Any) -> Iterator[tuple[str, str]]:
    """The rows of the table for a public name."""
    if not callable(value):
        yield name, type(value).__name__
    elif isinstance(value, type) and issubclass(value, enum.Enum):
        yield name, " ".join(value.__members__)
    elif isinstance(value, type) and issubclass(value, Exception):
        yield name, ", ".join(base.__name__ for base in value.__bases__)
    else:
        yield name, parameters(value)
        members = members_of(value) if isinstance(value, type) else {}
        for key, member in ((key, member) for key, member in members.items() if not key.startswith("_")):
            if isinstance(member, property):
                yield f"{name}.{key}", "property" if member.fset is None else "property that can be set"
            elif callable(getattr(value, key)):
                yield f"{name}.{key}", parameters(getattr(value, key))


def members_of(kind: type) -> dict[str, Any]:
    """The members of a class, with those of base classes in this package that are not public themselves."""
    own = [base for base in kind.__mro__ if base is kind or is_private(base)]
    return {key: member for base in reversed(own) for key, member in vars(base).items()}


def is_private(kind: type) -> bool:
    return kind.__module__.startswith("onnx_ops.") and kind.__name__ not in onnx_ops.__all__


def parameters(function: Any) -> str:
    """The signature without annotations."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


def rows(module: ModuleType) -> dict[str, str]:
    return dict(row for name in module.__all__ for row in described(name, getattr(module, name)))


def test_public_names_and_signatures() -> None:
    """Those of onnx_ops.torch where it can be imported."""
    changed = []
    for name, expected in TABLES.items():
        if name == "onnx_ops.torch" and not all(map(importlib.util.find_spec, ("torch", "onnxscript"))):
            continue
        found = rows(importlib.import_module(name))
        changed += [f"+ {name}: {key!r}: {text!r}," for key, text in found.items() if expected.get(key) != text]
        changed += [f"- {name}: {key!r}: {text!r}," for key, text in expected.items() if found.get(key) != text]
    assert not changed, (
        f"public names have changed. If that is intended, replace these rows of the tables in"
        f" tests/project/{Path(__file__).name}, and say in CHANGELOG.md what was before and what is now:\n"
        + "\n".join(changed)
    )


def test_documentation_imports_public_modules_alone() -> None:
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        blocks = re.findall(r"^```python\n(.*?)^```", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
        imported = {
            m for block in blocks for m in re.findall(r"^\s*(?:from|import) (onnx_ops[\w.]*)", block, re.MULTILINE)
        }
        assert imported <= PUBLIC_MODULES, path.name


def test_ops() -> None:
    assert list(onnx_ops.OPS) == sorted(onnx_ops.OPS)
    op = onnx_ops.OPS["HardshrinkBackward"]
    assert repr(op) == "OpInfo(name='HardshrinkBackward')"
    assert op.schema.name == "HardshrinkBackward"
    assert op.doc == op.schema.doc
    result = op.reference(np.array([1, 2], np.float32), np.array([0.25, 3], np.float32), lambd=0.5)
    assert result.tolist() == [0, 2]
    with pytest.raises(TypeError):
        onnx_ops.OPS["Hardshrink"] = op  # type: ignore[index]


# --- reprs -----------------------------------------------------------------------------------------------------------


def test_trainer_is_shown_with_its_step(tmp_path: Path) -> None:
    """Of a file by its path, else by the name of its graph."""
    model, path = steps.whole_step(), tmp_path / "step.onnx"
    path.write_bytes(model.SerializeToString())
    shown = "8 parameters, state of 80 bytes, batch inputs: x float32 (N, 3), y float32 (N, 2)"
    assert repr(onnx_ops.Trainer(path)) == f"<Trainer of '{path}': {shown}>"
    assert repr(onnx_ops.Trainer(model)) == f"<Trainer of '{model.graph.name}': {shown}>"


@pytest.mark.parametrize(("size", "memory"), [(300, "1.2 kB"), (5_250_000, "21.0 MB"), (10**10, "40.0 GB")])
def test_summary_of_a_large_step(size: int, memory: str) -> None:
    model = parser.parse_model(f"""
        <ir_version: 10, opset_import: ["": 21]>
        large (float[{size}] w) => (float loss) {{ loss = ReduceSum <keepdims = 0> (w) }}""")
    onnx_ops.Step({"w": onnx_ops.InputRole.PARAMETER}).write_into(model)
    assert summary(model) == f"{size:,} parameters, state of {memory}, batch inputs: none"


@pytest.mark.parametrize(
    ("tensor", "shown"),
    [
        (TensorType(), "TensorType(dtype=None, shape=None)"),
        (TensorType(TensorProto.INT64, ("N", None, 3)), "TensorType(dtype=TensorProto.INT64, shape=('N', None, 3))"),
        (TensorType(999, ()), "TensorType(dtype=999, shape=())"),
    ],
)  # fmt: skip
def test_types_are_shown_with_dtypes_by_name(tensor: TensorType, shown: str) -> None:
    assert repr(tensor) == shown
