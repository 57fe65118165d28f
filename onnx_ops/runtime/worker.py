"""A process that compiles functions into the cache: `python -m onnx_ops.runtime.worker`, started by `ahead`."""

from __future__ import annotations

import importlib
import os
import pickle
import sys

from onnx_ops.runtime.ahead import LAST, RECORD_BYTES
from onnx_ops.runtime.compiler import compile_native


def main(queue: int, functions: int, parent: int) -> None:
    """Compile functions until the queue is empty or the parent process has ended.

    Args:
        queue: descriptor of a pipe with indices of functions, which all workers read.
        functions: descriptor of a file with the pickled list of (module, name, signature).
        parent: id of the parent process.
    """
    wanted = pickle.loads(os.pread(functions, os.fstat(functions).st_size, 0))
    while os.getppid() == parent and len(record := os.read(queue, RECORD_BYTES)) == RECORD_BYTES:
        number = int.from_bytes(record, "little")
        if number == LAST:
            break
        module, name, signature = wanted[number]
        compile_native(getattr(importlib.import_module(module), name), signature)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
