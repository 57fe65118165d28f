"""python -m onnx_ops"""

from onnx_ops.cli import main

main()
