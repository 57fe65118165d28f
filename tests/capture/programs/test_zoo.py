"""The checks of scripts/zoo, on models that need no other package."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from onnx_ops import Trainer
from scripts.zoo import checking, report
from scripts.zoo.comparing import allowed, error
from scripts.zoo.entries import Case, Entry
from scripts.zoo.losses import cross_entropy, images
from scripts.zoo.models import ENTRIES, PACKAGES
from scripts.zoo.results import CHECKS, EAGER, OK, OK_IN_FLOAT64, Result


def small() -> Case:
    layers = nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(64, 5)
    return Case(nn.Sequential(*layers), cross_entropy, images(6))


def random() -> Case:
    def loss(model: nn.Module, inputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model, inputs + float(np.random.default_rng().normal()), labels)

    return Case(small().model, loss, images(6))


def checks_of(entry: Entry, folder: Path) -> Result:
    result = Result(entry.key, entry.package, entry.name)
    checking.Checks(entry, result, folder, lambda: None).run()
    return result


def test_a_small_model_passes_all_checks(tmp_path: Path) -> None:
    result = checks_of(Entry("none", "small", small), tmp_path)
    assert result.checks == dict.fromkeys((EAGER, *CHECKS), OK)
    assert result.nodes > 10
    assert all(off <= most < 0.1 for off, most in result.errors.values())


def test_what_rounding_makes_of_a_step_is_compared_in_float64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checking, "allowed", lambda *results: 0.0)
    result = checks_of(Entry("none", "small", small), tmp_path)
    assert {check: result.checks.get(check) for check in checking.IN_FLOAT64} == dict.fromkeys(
        checking.IN_FLOAT64, OK_IN_FLOAT64
    )
    assert list(result.failures()) == ["export"]


@pytest.mark.full
def test_a_wrong_step_is_wrong_in_float64_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = checking._trainer

    def wrong(path: Path) -> Trainer:
        trainer = right(path)
        step = trainer.step
        monkeypatch.setattr(trainer, "step", lambda **batch: {"loss": step(**batch)["loss"] * 1.001})
        return trainer

    monkeypatch.setattr(checking, "_trainer", wrong)
    result = checks_of(Entry("none", "small", small), tmp_path)
    assert list(result.failures()) == ["static", "second_state", "ten_steps"]


def test_a_loss_that_differs_between_runs_is_no_model_of_the_zoo(tmp_path: Path) -> None:
    assert list(checks_of(Entry("none", "random", random), tmp_path).checks) == [EAGER]


@pytest.mark.parametrize("fault", ["missing", "shape", "value", "nan", "whole"])
def test_errors_are_found(fault: str) -> None:
    exact = {"large": np.array([1e3, 1.0]), "small": np.array([1e-3, 2e-3]), "count": np.array(3)}
    got = {name: array.astype(np.float32) if array.dtype.kind == "f" else array for name, array in exact.items()}
    assert error(got, exact)[0] < 1e-6
    match fault:
        case "missing":
            del got["small"]
        case "shape":
            got["small"] = got["small"][:1]
        case "value":
            got["large"] = got["large"] * np.array([1.01, 1.0], np.float32)
        case "nan":
            got["small"] = np.array([1e-3, math.nan], np.float32)
        case "whole":
            got["count"] = np.array(4)
    assert error(got, exact)[0] >= 1e-3


def test_what_rounding_does_to_pytorch_is_allowed() -> None:
    exact, near = {"x": np.array([1.0, 2.0])}, {"x": np.array([1.0, 2.02])}
    assert allowed(exact, [exact], exact) == 1e-4
    assert allowed(exact, [exact, near, exact], exact) == pytest.approx(0.01, rel=1e-3)
    assert allowed(near, [exact], exact) == pytest.approx(0.1, rel=1e-3)


def test_the_table_has_many_models_of_many_packages() -> None:
    assert len(ENTRIES) == sum(len(models.entries) for models in PACKAGES) >= 80  # no key occurs twice
    assert len({entry.package for entry in ENTRIES.values()}) >= 12


def test_the_report_names_what_fails(tmp_path: Path) -> None:
    good, bad = list(ENTRIES.values())[:2]
    Result(good.key, good.package, good.name, "1.0", dict.fromkeys((EAGER, *CHECKS), OK), nodes=12).write(
        tmp_path / f"{good.key}.json"
    )
    Result(bad.key, bad.package, bad.name, "1.0", {EAGER: OK, "static": "an error", "dynamic": "an error"}).write(
        tmp_path / f"{bad.key}.json"
    )
    text = report.text(tmp_path, tmp_path / "none")
    assert "Of 2 models of 1 packages" in text
    assert "1 are captured with dynamic sizes" in text
    assert "- static, dynamic: `an error`" in text
