"""Everything that knows onnxruntime's ABI or Numba's insides; nothing here knows of any op.

Of these modules only `primitives` may be imported by the ops: it is plain Python. The others import Numba, which is
wanted only once a kernel is.
"""
