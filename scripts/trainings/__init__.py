"""Trainings on real data that show what the families of ops are for; each is a command, and needs no PyTorch."""
