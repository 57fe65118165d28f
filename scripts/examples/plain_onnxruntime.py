"""Train with the step of `capture` in onnxruntime alone, as a program in any language can: without this package."""

import numpy as np
import onnxruntime as ort

options = ort.SessionOptions()
options.log_severity_level = 3  # it would warn of state that is an input with a default
session = ort.InferenceSession("step.onnx", options)
outputs = [output.name for output in session.get_outputs()]

rng = np.random.default_rng(0)
inputs = rng.normal(size=(90, 4)).astype(np.float32)
batch = {"inputs": inputs, "labels": inputs[:, :3].argmax(axis=1)}

# The initial state is the defaults of the inputs. An output `next.x` is the input `x` of the next step.
state: dict[str, np.ndarray] = {}
losses = []
for _ in range(50):
    results = dict(zip(outputs, session.run(None, batch | state), strict=True))
    losses.append(float(results["loss"]))
    state = {name.removeprefix("next."): array for name, array in results.items() if name.startswith("next.")}
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
