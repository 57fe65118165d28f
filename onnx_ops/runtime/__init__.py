"""Everything that knows onnxruntime's ABI or Numba's insides; nothing here knows of any op.

Of these modules only `cache`, `process` and `progress` may be imported from outside when a module is loaded: they are
plain Python. The others import Numba, which is wanted only once a kernel is.
"""
