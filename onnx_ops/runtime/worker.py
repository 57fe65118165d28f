"""A process that compiles functions into the cache: `python -m onnx_ops.runtime.worker`, started by `ahead`."""

from __future__ import annotations

import importlib
import os
import pickle
import sys

from onnx_ops.runtime import cache
from onnx_ops.runtime.ahead import LAST, RECORD_BYTES
from onnx_ops.runtime.compiler import Function, compile_native, entry_name, is_kept

PATIENCE = 120.0
"""Seconds that a function that another process compiles is waited for."""


def main(queue: int, functions: int, parent: int) -> None:
    """Compile functions until the queue is empty or the parent process has ended.

    Those that another process is compiling come last, and are compiled here if it does not finish them.

    Args:
        queue: descriptor of a pipe with indices of functions, which all workers read.
        functions: descriptor of a file with the pickled list of (module, name, signature).
        parent: id of the parent process.
    """
    wanted = pickle.loads(os.pread(functions, os.fstat(functions).st_size, 0))
    elsewhere: list[Function] = []
    while os.getppid() == parent and len(record := os.read(queue, RECORD_BYTES)) == RECORD_BYTES:
        number = int.from_bytes(record, "little")
        if number == LAST:
            break
        module, name, signature = wanted[number]
        function = getattr(importlib.import_module(module), name), signature
        with cache.claimed(entry_name(function)) as is_own:
            if is_own:
                compile_native(*function)
            else:
                elsewhere.append(function)
    patience = PATIENCE
    for function in elsewhere:
        with cache.claimed(entry_name(function), patience) as is_own:
            patience = PATIENCE if is_own else 0.0
            if os.getppid() == parent and not is_kept(function):
                compile_native(*function)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
