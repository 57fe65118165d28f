"""Runs a training program in one of several MPI processes, so that none of them waits for one that has failed.

    mpiexec -n 4 python -m onnx_ops.mpi train.py ARGUMENTS

From its first line on, an exception that the program does not catch, an exit with a status other than 0, and a signal
that kills it end all processes, after a message with its rank. `-m MODULE`, `-c COMMAND` and `-` (standard
input) take the place of the file as they do for Python.

When a program imports the module, the same happens for exceptions from then on. It needs mpi4py, the extra
`onnx-ops[mpi]`.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import threading
from typing import Any

from onnx_ops.training.workers.agreement import leave
from onnx_ops.training.workers.ending import announce, call_at_exit, end_all_by_exceptions

SUPERVISED = "ONNX_OPS_SUPERVISED"
"""Environment variable of a supervised process: a file descriptor that is closed when the supervisor ends."""
RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Environment variables with the rank of a process, by launcher."""
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)
USAGE = "mpiexec -n WORKERS python -m onnx_ops.mpi [FILE | -m MODULE | -c COMMAND | -] [ARGUMENTS]"


def protect() -> Any:
    """Make uncaught exceptions end all processes, from now on.

    Returns:
        The communicator of all processes, mpi4py.MPI.COMM_WORLD.
    """
    from mpi4py import MPI

    workers = MPI.COMM_WORLD
    end_all_by_exceptions(workers)
    call_at_exit(workers, lambda: leave(workers))
    return workers


def run(arguments: list[str]) -> None:
    """Run a program in this process; arguments as of Python."""
    from mpi4py.run import run_command_line

    workers = protect()
    try:
        run_command_line(arguments)
    except SystemExit as ending:
        if ending.code in (None, 0):
            raise
        status = ending.code if isinstance(ending.code, int) else 1
        if status != ending.code:
            print(ending.code, file=sys.stderr)
        announce(f"worker {workers.rank} has ended with exit status {status} and ends all others")
        workers.Abort(status)


def supervise() -> int:
    """Run this command in a child process, and print a message if a signal kills it.

    Returns:
        The exit status of the child; 128 plus the number of the signal that has killed it.
    """
    watched, held = os.pipe()  # the system closes `held` when this process ends
    environment = os.environ | {SUPERVISED: str(watched)}
    os.set_inheritable(watched, True)
    # The launcher's descriptors are inherited too, as MPI in the child communicates over them.
    command = [sys.executable, *sys.orig_argv[1:]]
    with subprocess.Popen(command, env=environment, close_fds=False) as worker:
        os.close(watched)
        seen: set[int] = set()
        for number in ENDING_SIGNALS:  # launchers send them to the worker too
            signal.signal(number, lambda received, _: seen.add(received))
        status = worker.wait()
    if status >= 0:
        return status
    if -status not in seen:
        rank = next((os.environ[name] for name in RANKS if name in os.environ), "?")
        why = "; the system sends it to a process when memory is short" if -status == signal.SIGKILL else ""
        announce(f"worker {rank} was killed by signal {-status} ({signal.Signals(-status).name}), which ends all{why}")
    os.close(held)
    return 128 - status


def end_with(descriptor: int) -> None:
    """End this process when the other end of a pipe is closed."""

    def wait() -> None:
        os.read(descriptor, 1)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def main() -> None:
    """The command; ends the process."""
    if not sys.argv[1:]:
        sys.exit(f"usage: {USAGE}")
    if importlib.util.find_spec("mpi4py") is None:
        sys.exit("onnx_ops.mpi needs mpi4py, which is not installed: pip install 'onnx-ops[mpi]'")
    if hasattr(os, "fork"):  # elsewhere a child does not inherit the launcher's descriptors
        descriptor = os.environ.pop(SUPERVISED, None)
        if descriptor is None:
            sys.exit(supervise())
        end_with(int(descriptor))
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
else:
    protect()
