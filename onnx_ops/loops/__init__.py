"""What an op hands over to be compiled, as plain data, and the primitives that kernels are written with."""
