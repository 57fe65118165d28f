"""Everything that knows onnxruntime's ABI or Numba's insides; nothing here knows of any op.

Of these modules only `primitives` and `layout` may be imported by the ops: they are plain Python. The others import
Numba, which is wanted only once a kernel is.
"""
