"""onnxruntime's ABI and Numba's internals; independent of the ops.

Only `cache`, `process` and `progress` are imported from outside when a module is loaded: they are plain Python. The
others import Numba, which is loaded when the first kernel is needed.
"""
