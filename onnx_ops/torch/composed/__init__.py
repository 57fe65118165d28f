"""Functions and operators of PyTorch, written in operators that torch.onnx translates right.

They stand in for what has no translation in one piece. A module has `FUNCTIONS`, which take the place of PyTorch's
functions with the same parameters, or `OPERATORS`, which take operators of the traced graph apart; one of these may
return NotImplemented for a call that can stay as it is.
"""
