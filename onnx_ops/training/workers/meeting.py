"""Where a worker meets the others next."""

from __future__ import annotations

from collections.abc import Callable

from onnx_ops.training.workers.agreement import check_agreement, checksum, leave
from onnx_ops.training.workers.communicator import Communicator
from onnx_ops.training.workers.ending import call_at_exit


class Meeting:
    """The message in which other workers may wait for this one, which it takes part in if it ends.

    Workers with several steps agree before each of them on which one it is.

    Args:
        communicator: of the workers.
        steps: the names of the steps.

    Raises:
        WorkerError: workers with other steps.
    """

    def __init__(self, communicator: Communicator, steps: list[str]) -> None:
        self._communicator, self._steps = communicator, steps
        self._leave: Callable[[], None] | None = None
        if len(steps) > 1:
            check_agreement(communicator, checksum(["\0".join(steps).encode()]), "the names of its steps")
        call_at_exit(communicator, self.leave)

    def begin(self, step: str) -> None:
        """Agree on the next step. WorkerError if another worker makes another one, or has ended."""
        if len(self._steps) > 1:
            number = self._steps.index(step)
            check_agreement(self._communicator, number, "the step that it makes", f"makes the step '{step}'")

    def expect(self, leave: Callable[[], None]) -> None:
        """From now on other workers may wait in a message that `leave` takes part in."""
        self._leave = leave

    def end(self, leave: Callable[[], None]) -> None:
        """End a step: the next message is that of `begin`, or with a single step the one of `leave`."""
        self._leave = leave if len(self._steps) == 1 else None

    def leave(self) -> None:
        """Tell workers that wait that this one ends."""
        if self._leave is None:
            leave(self._communicator)
        else:
            self._leave()
