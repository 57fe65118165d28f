"""Write golden.npz, PyTorch's results for the five ops; the format is described in golden.py.

    python tests/make_golden.py

Needs torch (CPU). Seeded per case by its id: the same torch gives the same file, and a new case changes no other.

Inputs keep clear of where the ops and torch part on purpose: NaN in hardshrink (torch passes the gradient or not,
depending on the vector width), log_probs of -inf in CTC (torch gives NaN), lambd that a half type cannot hold,
batchmean where self and the broadcast shape differ in the first extent.
"""

from __future__ import annotations

import json
import warnings
import zlib
from typing import Any

import ml_dtypes
import numpy as np
import torch
from golden import PATH

DTYPES = {
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float32": np.dtype(np.float32),
    "float64": np.dtype(np.float64),
}
REDUCTIONS = ("none", "mean", "sum", "batchmean")

# float32 and float64: torch and the result each round a handful of operations on the largest term. Half types: the
# stored value is rounded correctly, the result may be one unit off; an epsilon is one to two units.
ELEMENTWISE_EPSILONS = {"float16": 1, "bfloat16": 1, "float32": 8, "float64": 8}
HALF = ("float16", "bfloat16")  # fewer cases: what differs from float32 is only the store

Arrays = dict[str, np.ndarray | None]
_index: list[dict[str, Any]] = []
_arrays: dict[str, np.ndarray] = {}


def generator(case_id: str) -> np.random.Generator:
    """Seeded by the case's name."""
    return np.random.default_rng(zlib.crc32(case_id.encode()))


def native(dtype: str) -> str:
    """The dtype torch computes a case in."""
    return "float64" if dtype in HALF else dtype


def tensor(array: np.ndarray | None, dtype: str) -> torch.Tensor | None:
    """A tensor of `dtype` with array's values."""
    return None if array is None else torch.from_numpy(array.astype(DTYPES[dtype]))


def add(
    case_id: str,
    op: str,
    inputs: Arrays,
    attributes: dict[str, Any],
    expected: np.ndarray,
    computed_in: str,
    rtol: float,
    atol_scale: float,
) -> None:
    """Append one case; atol is atol_scale * max |finite expected|."""
    case_id = f"{op}-{case_id}"
    assert case_id not in {case["id"] for case in _index}, case_id
    given = {name: array for name, array in inputs.items() if array is not None} | {"expected": expected}
    bfloat16 = [name for name, array in given.items() if array.dtype == ml_dtypes.bfloat16]
    for name, array in given.items():
        _arrays[f"{case_id}/{name}"] = array.view(np.uint16) if name in bfloat16 else array
    finite = np.abs(expected.astype(np.float64))
    finite = finite[np.isfinite(finite)]
    _index.append(
        {
            "id": case_id,
            "op": op,
            "inputs": list(inputs),
            "missing": [name for name, array in inputs.items() if array is None],
            "bfloat16": bfloat16,
            "attributes": attributes,
            "computed_in": computed_in,
            "rtol": rtol,
            "atol": float(atol_scale * finite.max(initial=0.0)),
        }
    )


def add_elementwise(
    case_id: str, op: str, inputs: Arrays, attributes: dict[str, Any], out: torch.Tensor, dtype: str
) -> None:
    """`add` with the tolerance of `dtype` and torch's result rounded to it."""
    tolerance = ELEMENTWISE_EPSILONS[dtype] * float(ml_dtypes.finfo(DTYPES[dtype]).eps)
    expected = out.detach().numpy().astype(DTYPES[dtype])
    add(case_id, op, inputs, attributes, expected, native(dtype), tolerance, tolerance)


def hardshrink_backward() -> None:
    """torch.ops.aten.hardshrink_backward, in every dtype's own kernel: the op only selects, so bits agree."""

    def case(name: str, dtype: str, grad_output: np.ndarray, x: np.ndarray, lambd: float) -> None:
        inputs: Arrays = {"grad_output": grad_output.astype(DTYPES[dtype]), "self": x.astype(DTYPES[dtype])}
        kind = getattr(torch, dtype)
        grad, this = (torch.from_numpy(a.astype(np.float64)).to(kind) for a in inputs.values() if a is not None)
        out = torch.ops.aten.hardshrink_backward(grad, this, float(np.float32(lambd)))
        expected = out.to(torch.float64).numpy().astype(DTYPES[dtype])
        add(f"{dtype}-{name}", "hardshrink_backward", inputs, {"lambd": lambd}, expected, dtype, 0.0, 0.0)

    for dtype in DTYPES:
        for lambd in (0.0, 0.5, 1.25):
            rng = generator(f"{dtype}-{lambd}")
            x = rng.normal(size=(2, 3, 7))
            x.flat[:8] = [lambd, -lambd, 0.0, -0.0, np.inf, -np.inf, 1.0, -1.0]
            case(f"lambd_{lambd}", dtype, rng.normal(size=x.shape), x, lambd)
        rng = generator(dtype)
        case("broadcast", dtype, rng.normal(size=(4, 1, 3)), rng.normal(size=(5, 1)), 0.5)
        case("rank_0", dtype, np.array(2.0), np.array(-0.75), 0.5)
        case("empty", dtype, np.zeros((2, 0)), np.zeros((2, 0)), 0.5)
        case("infinite_gradient", dtype, np.array([np.inf, -np.inf, np.inf]), np.array([0.25, 0.75, -1.0]), 0.5)
    limit = np.float32(0.3)
    x = np.array([limit, np.nextafter(limit, np.float32(1)), np.nextafter(limit, np.float32(0))])
    case("boundary_0.3", "float32", np.arange(1.0, 7.0), np.concatenate([x, -x]), 0.3)
    x = np.array([np.float64(limit), np.nextafter(np.float64(limit), 1), 0.3])  # 0.3 < float32(0.3)
    case("boundary_0.3", "float64", np.arange(1.0, 7.0), np.concatenate([x, -x]), 0.3)


def kl_div_backward() -> None:
    """Autograd of torch.nn.functional.kl_div."""

    def case(
        name: str,
        dtype: str,
        self_shape: tuple[int, ...],
        target_shape: tuple[int, ...],
        reduction: int,
        log_target: int,
    ) -> None:
        rng = generator(f"{dtype}-{name}")
        shape = np.broadcast_shapes(self_shape, target_shape)
        target = rng.uniform(0.01, 1.0, size=target_shape)
        if log_target:
            target = np.log(target)
        elif target.size > 2:
            target.flat[1] = 0.0
        inputs: Arrays = {
            "grad_output": np.asarray(rng.normal(size=() if reduction else shape)).astype(DTYPES[dtype]),
            "self": np.asarray(np.log(rng.uniform(0.01, 1.0, size=self_shape))).astype(DTYPES[dtype]),
            "target": np.asarray(target).astype(DTYPES[dtype]),
        }
        grad, this, wanted = (tensor(array, native(dtype)) for array in inputs.values())
        this.requires_grad_()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch advises batchmean over mean
            loss = torch.nn.functional.kl_div(
                this, wanted, reduction=REDUCTIONS[reduction], log_target=bool(log_target)
            )
        (out,) = torch.autograd.grad(loss, this, grad)
        attributes = {"reduction": reduction, "log_target": log_target}
        add_elementwise(f"{dtype}-{name}", "kl_div_backward", inputs, attributes, out, dtype)

    for dtype in DTYPES:
        for reduction in (0, 3) if dtype in HALF else range(4):
            for log_target in (0, 1):
                case(f"{REDUCTIONS[reduction]}-log_target_{log_target}", dtype, (4, 6), (4, 6), reduction, log_target)
        case("self_broadcast", dtype, (3, 1, 5), (1, 4, 5), 0, 0)
        case("self_broadcast_lead", dtype, (1, 5), (2, 3, 5), 1, 1)
        case("target_broadcast", dtype, (2, 3, 5), (5,), 2, 0)
        case("rank_0", dtype, (), (), 1, 0)


def binary_cross_entropy_with_logits_backward() -> None:
    """Autograd of torch.nn.functional.binary_cross_entropy_with_logits."""

    def case(
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        reduction: int,
        weight_shape: tuple[int, ...] | None = None,
        pos_weight_shape: tuple[int, ...] | None = None,
        scale: float = 3.0,
        hard: bool = False,
    ) -> None:
        rng = generator(f"{dtype}-{name}")
        target = rng.uniform(size=shape)
        raw: Arrays = {
            "grad_output": np.asarray(rng.normal(size=() if reduction else shape)),
            "self": scale * rng.normal(size=shape),
            "target": np.round(target) if hard else target,
            "weight": None if weight_shape is None else rng.uniform(0.1, 2.0, size=weight_shape),
            "pos_weight": None if pos_weight_shape is None else rng.uniform(0.1, 5.0, size=pos_weight_shape),
        }
        inputs = {key: None if array is None else array.astype(DTYPES[dtype]) for key, array in raw.items()}
        grad, this, wanted, weight, pos_weight = (tensor(array, native(dtype)) for array in inputs.values())
        this.requires_grad_()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(
            this, wanted, weight, reduction=REDUCTIONS[reduction], pos_weight=pos_weight
        )
        (out,) = torch.autograd.grad(loss, this, grad)
        op = "binary_cross_entropy_with_logits_backward"
        add_elementwise(f"{dtype}-{name}", op, inputs, {"reduction": reduction}, out, dtype)

    for dtype in DTYPES:
        for reduction in (1,) if dtype in HALF else range(3):
            kind = REDUCTIONS[reduction]
            case(f"{kind}", dtype, (3, 4), reduction)
            case(f"{kind}-weight", dtype, (3, 4), reduction, weight_shape=(3, 4))
            case(f"{kind}-pos_weight", dtype, (3, 4), reduction, pos_weight_shape=(4,))
            case(f"{kind}-both", dtype, (2, 3, 4), reduction, weight_shape=(3, 1), pos_weight_shape=(4,))
        case("large_logits", dtype, (4, 8), 2, scale=1e3, hard=True)
        case("empty", dtype, (0, 3), 2)


def batch_norm_elemt_backward() -> None:
    """Autograd of torch.native_batch_norm in float64, over the samples of all workers; this worker holds the first."""

    def case(
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        workers: tuple[int, ...],
        counter_dtype: str,
        weighted: bool,
        statistics: str,
    ) -> None:
        rng = generator(f"{dtype}-{name}")
        channels, inner = shape[1], int(np.prod(shape[2:], dtype=np.int64))
        x = rng.normal(1.0, 2.0, size=shape).astype(DTYPES[dtype])
        grad = rng.normal(size=shape).astype(DTYPES[dtype])
        weight = rng.uniform(0.5, 2.0, size=channels).astype(DTYPES[statistics]) if weighted else None
        this, dy, scale = tensor(x, "float64"), tensor(grad, "float64"), tensor(weight, "float64")
        this.requires_grad_()
        y, mean, invstd = torch.native_batch_norm(this, scale, None, None, None, True, 0.1, 1e-5)
        (out,) = torch.autograd.grad(y, this, dy)
        axes = [axis for axis in range(len(shape)) if axis != 1]
        centred = this.detach() - mean.reshape((-1,) + (1,) * (len(shape) - 2))
        mine = slice(0, workers[0])
        inputs: Arrays = {
            "grad_out": grad[mine],
            "input": x[mine],
            "mean": mean.numpy(),
            "invstd": invstd.numpy(),
            "weight": weight,
            "sum_dy": dy.sum(axes).numpy(),
            "sum_dy_xmu": (dy * centred).sum(axes).numpy(),
            "counter": np.array([n * inner for n in workers]).astype(counter_dtype),
        }
        for key in ("mean", "invstd", "sum_dy", "sum_dy_xmu"):
            inputs[key] = inputs[key].astype(DTYPES[statistics])
        # rounding the statistics to their dtype costs as much as computing in it
        epsilons = ELEMENTWISE_EPSILONS[dtype] * float(ml_dtypes.finfo(DTYPES[dtype]).eps)
        tolerance = max(epsilons, 16 * float(ml_dtypes.finfo(DTYPES[statistics]).eps))
        add(
            f"{dtype}-{name}",
            "batch_norm_elemt_backward",
            inputs,
            {},
            out[mine].numpy().astype(DTYPES[dtype]),
            "float64",
            tolerance,
            tolerance,
        )

    for dtype in DTYPES:
        wide = "float64" if dtype == "float64" else "float32"
        case("rank_4-two_workers", dtype, (5, 2, 3, 2), (2, 3), "float32", True, wide)
        case("rank_2", dtype, (6, 3), (6,), "int32", True, wide)
        if dtype in HALF:
            continue
        case("rank_3-no_weight", dtype, (3, 4, 5), (3,), "float32", False, wide)
        case("rank_5-three_workers", dtype, (4, 3, 2, 1, 2), (1, 2, 1), "float16", True, wide)
        case("rank_8", dtype, (2, 2, 1, 2, 1, 2, 1, 2), (2,), "int32", True, wide)


def ctc_loss_backward() -> None:
    """torch.ops.aten._ctc_loss and _ctc_loss_backward."""

    def case(
        name: str,
        dtype: str,
        steps: int,
        classes: int,
        targets: list[list[int]],
        input_lengths: list[int],
        blank: int = 0,
        zero_infinity: int = 0,
        flat: bool = False,
        wide: str | None = None,
        targets_dtype: str = "int64",
        lengths_dtype: str = "int64",
    ) -> None:
        rng = generator(f"{dtype}-{name}")
        batch, computed_in = len(targets), native(dtype)
        wide = wide or ("float64" if dtype == "float64" else "float32")
        logits = rng.normal(size=(steps, batch, classes))
        log_probs = (logits - np.log(np.exp(logits).sum(-1, keepdims=True))).astype(DTYPES[dtype])
        if wide == "float64":
            computed_in = "float64"
        lengths = [len(target) for target in targets]
        if flat:
            labels = np.array([label for target in targets for label in target])
        else:
            labels = np.full((batch, max(lengths, default=0)), 1 if blank == 0 else 0)
            for row, target in zip(labels, targets, strict=True):
                row[: len(target)] = target
        inputs: Arrays = {
            "grad_out": rng.normal(size=batch).astype(DTYPES[dtype]),
            "log_probs": log_probs,
            "targets": labels.astype(targets_dtype),
            "input_lengths": np.array(input_lengths).astype(lengths_dtype),
            "target_lengths": np.array(lengths).astype(lengths_dtype),
        }
        grad, scores = (tensor(inputs[key], computed_in) for key in ("grad_out", "log_probs"))
        wanted = torch.from_numpy(labels.astype(np.int64))
        loss, log_alpha = torch.ops.aten._ctc_loss(scores, wanted, input_lengths, lengths, blank, bool(zero_infinity))
        log_alpha = log_alpha.clone()
        for n in range(batch):  # torch leaves these uninitialised
            log_alpha[n, input_lengths[n] :] = -np.inf
            log_alpha[n, :, 2 * lengths[n] + 1 :] = -np.inf
        if zero_infinity:  # torch has replaced the losses that the op is to recognise
            loss = torch.ops.aten._ctc_loss(scores, wanted, input_lengths, lengths, blank, False)[0]
        inputs["neg_log_likelihood"] = loss.numpy().astype(DTYPES[wide])
        inputs["log_alpha"] = log_alpha.numpy().astype(DTYPES[wide])
        loss, log_alpha = (tensor(inputs[key], computed_in) for key in ("neg_log_likelihood", "log_alpha"))
        out = torch.ops.aten._ctc_loss_backward(
            grad, scores, wanted, input_lengths, lengths, loss, log_alpha, blank, bool(zero_infinity)
        )
        # exp turns the absolute error of the log variables, epsilon times their size per step, into a relative one
        reached = np.abs(inputs["log_alpha"])
        size = float(reached.max(where=np.isfinite(reached), initial=1.0))
        narrow = "float32" if dtype in HALF else dtype
        tolerance = float(ml_dtypes.finfo(DTYPES[dtype]).eps) + 4 * size * float(ml_dtypes.finfo(DTYPES[narrow]).eps)
        attributes = {"blank": blank, "zero_infinity": zero_infinity}
        expected = out.numpy().astype(DTYPES[dtype])
        add(f"{dtype}-{name}", "ctc_loss_backward", inputs, attributes, expected, computed_in, tolerance, tolerance)

    mixed = [[1, 2, 3], [2, 2], [], [4, 1, 4, 4]]
    for dtype in DTYPES:
        case("padded", dtype, 12, 5, mixed, [12, 9, 12, 7])
        case("flat", dtype, 12, 5, mixed, [12, 9, 12, 7], flat=True, targets_dtype="int32", lengths_dtype="int32")
        case("impossible-zero_infinity", dtype, 4, 3, [[1, 1, 1], [1, 2]], [4, 3], zero_infinity=1)
        if dtype in HALF:
            continue
        case("last_blank", dtype, 8, 4, [[0, 1, 0], [2, 2]], [8, 5], blank=3, lengths_dtype="uint8")
        case("impossible", dtype, 4, 3, [[1, 1, 1], [1, 2]], [4, 3])
        case("single_path", dtype, 3, 4, [[1, 3, 2]], [3], targets_dtype="float32", lengths_dtype="int8")
    case("wide_log_alpha", "float32", 30, 6, [[1, 2, 3, 4, 5, 5, 1]], [30], wide="float64", lengths_dtype="int16")
    case("longer", "float64", 50, 8, [[1, 2, 3, 4, 5, 5, 1, 7, 6, 6]], [47])


def main() -> None:
    """Make all cases and write the file."""
    torch.set_num_threads(1)
    for make in (
        kl_div_backward,
        binary_cross_entropy_with_logits_backward,
        ctc_loss_backward,
        batch_norm_elemt_backward,
        hardshrink_backward,
    ):
        make()
    _arrays["index"] = np.frombuffer(json.dumps(_index).encode(), np.uint8)
    np.savez_compressed(PATH, **_arrays)
    print(f"{len(_index)} cases, {PATH.stat().st_size} bytes")


if __name__ == "__main__":
    main()
