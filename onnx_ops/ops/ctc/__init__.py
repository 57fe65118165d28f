"""Connectionist temporal classification: the loss and its gradient."""
