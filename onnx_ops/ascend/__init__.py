"""Porting from Ascend: what an op corresponds to in CANN, parser plugins for ATC, golden functions, case tables."""
