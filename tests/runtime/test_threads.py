"""Sessions in many threads: shared, side by side, being made, and failing, all at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import parser

import onnx_ops

THREADS = 8
ROUNDS = 25
RNG = np.random.default_rng(22)
# Large enough for several blocks, so that the session's own threads take part.
SHAPE = (70, 1000)
MODEL = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
graph (float[R,C] g, float[R,C] x, float[C] s) => (float[R,C] h, float[C] k, float[R,C] b) {
    h = aclnn.HardshrinkBackward <lambd: float = 0.25> (g, x)
    k = aclnn.KlDivBackward <reduction: int = 2> (g, s, x)
    b = aclnn.BinaryCrossEntropyWithLogitsBackward (g, x, x)
}"""
CTC = """<ir_version: 10, opset_import: ["" : 21, "aclnn" : 1]>
graph (float[N] g, float[T,N,C] p, int64[N,S] t, int64[N] il, int64[N] tl, float[N] loss, float[N,T,A] alpha)
        => (float[T,N,C] o) { o = aclnn.CtcLossBackward (g, p, t, il, tl, loss, alpha) }"""


def elementwise_feeds(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "g": rng.normal(size=SHAPE).astype(np.float32),
        "x": rng.normal(size=SHAPE).astype(np.float32),
        "s": np.zeros(SHAPE[1], np.float32),
    }


def ctc_feeds(seed: int) -> dict[str, np.ndarray]:
    rng, (t, n, c, s) = np.random.default_rng(seed), (20, 12, 7, 4)
    return {
        "g": rng.normal(size=n).astype(np.float32),
        "p": np.log(rng.dirichlet(np.ones(c), (t, n))).astype(np.float32),
        "t": rng.integers(1, c, (n, s)),
        "il": rng.integers(s * 2, t + 1, n),
        "tl": rng.integers(0, s + 1, n),
        "loss": rng.uniform(1, 5, n).astype(np.float32),
        "alpha": rng.uniform(-40, -1, (n, t, 2 * s + 1)).astype(np.float32),
    }


def session(text: str = MODEL, threads: int = 2) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    return onnx_ops.InferenceSession(parser.parse_model(text), options)


def in_threads(work: Callable[[int], None]) -> None:
    """Run work(0..THREADS-1), each in a thread, all at once; raises what one of them raised."""
    barrier = threading.Barrier(THREADS)

    def run(number: int) -> None:
        barrier.wait(timeout=60)
        work(number)

    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(run, number) for number in range(THREADS)]:
            done.result(timeout=120)


def same_bits(session: ort.InferenceSession, feeds: dict[str, np.ndarray], expected: list[np.ndarray]) -> None:
    for actual, wanted in zip(session.run(None, feeds), expected, strict=True):
        np.testing.assert_array_equal(actual.view(np.uint32), wanted.view(np.uint32))


MODELS = pytest.mark.parametrize(
    ("text", "feeds_of"), [(MODEL, elementwise_feeds), (CTC, ctc_feeds)], ids=["elementwise", "ctc"]
)
FeedsOf = Callable[[int], dict[str, np.ndarray]]


@MODELS
def test_results_do_not_depend_on_the_number_of_threads(text: str, feeds_of: FeedsOf) -> None:
    feeds = feeds_of(0)
    expected = session(text, threads=1).run(None, feeds)
    assert all(np.isfinite(e).all() for e in expected)
    for threads in (2, 3, 8):
        same_bits(session(text, threads), feeds, expected)


@MODELS
def test_one_session_in_eight_threads(text: str, feeds_of: FeedsOf) -> None:
    shared = session(text)
    feeds = [feeds_of(seed) for seed in range(THREADS)]
    expected = [shared.run(None, f) for f in feeds]

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            same_bits(shared, feeds[number], expected[number])

    in_threads(work)


def test_two_sessions_in_eight_threads() -> None:
    both = [session(MODEL), session(CTC)]
    feeds = [(elementwise_feeds, ctc_feeds)[n % 2](n) for n in range(THREADS)]
    expected = [both[n % 2].run(None, f) for n, f in enumerate(feeds)]

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            same_bits(both[number % 2], feeds[number], expected[number])

    in_threads(work)


@pytest.mark.parametrize("lambd", [0.25, 0.5])
def test_sessions_made_in_eight_threads(lambd: float) -> None:
    text = MODEL.replace("0.25", str(lambd))
    feeds = elementwise_feeds(1)
    expected = session(text).run(None, feeds)

    def work(number: int) -> None:
        for _ in range(4):
            same_bits(session(text, threads=1 + number % 2), feeds, expected)

    in_threads(work)


def test_options_and_linking_in_eight_threads() -> None:
    model = parser.parse_model(MODEL)
    linked = onnx_ops.link(model).SerializeToString(deterministic=True)
    options = ort.SessionOptions()
    feeds = elementwise_feeds(2)
    expected = session().run(None, feeds)

    def work(number: int) -> None:
        onnx_ops.register_kernels(options)
        assert onnx_ops.link(model).SerializeToString(deterministic=True) == linked
        same_bits(ort.InferenceSession(linked, options), feeds, expected)

    in_threads(work)


def test_errors_in_some_threads_leave_the_others_alone() -> None:
    shared = session(MODEL)
    right = elementwise_feeds(3)
    expected = shared.run(None, right)
    wrong = right | {"x": right["x"][:, :-1]}

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            if number % 2:
                same_bits(shared, right, expected)
            else:
                with pytest.raises(
                    Exception, match=r"Backward: input '\w+' has shape \(70, (999|1000)\), expected .*161002"
                ):
                    shared.run(None, wrong)

    in_threads(work)


def test_errors_of_values_in_some_threads_leave_the_others_alone() -> None:
    shared = session(CTC)
    right = ctc_feeds(4)
    (expected,) = shared.run(None, right)
    wrong = [right | {"t": np.full_like(right["t"], 7 + n), "tl": np.full_like(right["tl"], 2)} for n in range(THREADS)]

    def work(number: int) -> None:
        for _ in range(ROUNDS):
            if number % 2:
                same_bits(shared, right, [expected])
            else:
                with pytest.raises(Exception, match=rf"'targets' has {7 + number} in sample 0.*\[0, 7\).*161002"):
                    shared.run(None, wrong[number])

    in_threads(work)


def test_a_session_may_die_in_another_thread() -> None:
    feeds = elementwise_feeds(5)
    expected = session().run(None, feeds)

    def work(number: int) -> None:
        mine = session()
        same_bits(mine, feeds, expected)
        with ThreadPoolExecutor(1) as pool:
            box = [mine]
            del mine
            pool.submit(box.clear).result()

    in_threads(work)


def test_models_without_any_op_of_ours_run_with_our_options() -> None:
    model = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21]> graph (float[2] x) => (float[2] o) { o = Neg (x) }'
    )
    assert isinstance(model, onnx.ModelProto)

    def work(number: int) -> None:
        (out,) = onnx_ops.InferenceSession(model).run(None, {"x": np.full(2, number, np.float32)})
        np.testing.assert_array_equal(out, np.full(2, -number, np.float32))

    in_threads(work)
