"""Trainings on real data, one for each of five families of ops; each is a command and does not require PyTorch."""
