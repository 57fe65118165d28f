"""One short program for each common use, such as `python -m scripts.examples.op_on_arrays`.

Without PyTorch: op_on_arrays, op_in_a_graph, step_by_hand. With PyTorch: capture, which writes step.onnx into the
current folder; fine_tune, gan, custom_optimizer. Without PyTorch again, with the step.onnx of capture: train,
epochs, plain_onnxruntime, accumulate, checkpoint, workers.
"""
