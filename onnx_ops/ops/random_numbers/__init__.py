"""Random numbers of a distribution, as functions of a seed."""
