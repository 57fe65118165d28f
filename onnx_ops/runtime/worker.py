"""A process that compiles functions into the cache: `python -m onnx_ops.runtime.worker`, started by `ahead`."""

from __future__ import annotations

import importlib
import os
import pickle
import sys

from onnx_ops.runtime.ahead import LAST, RECORD_BYTES
from onnx_ops.runtime.compiler import compile_native


def main(queue: int, functions: int, parent: int) -> None:
    """Compile functions until there are none left, or the process that wants them has ended.

    Args:
        queue: a pipe with the places of functions in the list; other workers read it too.
        functions: a file with the list: module, name and signature of each.
        parent: the process that wants them.
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
