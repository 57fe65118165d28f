"""Distributed training: workers that share each step, with an Allreduce between its parts."""
