"""Gradients of hardtanh, such as ReLU6, hardsigmoid and hardswish."""
