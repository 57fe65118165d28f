"""Group normalization and its gradients."""
