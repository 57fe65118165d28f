"""Sampling of images and volumes at the points of a grid, and its gradients."""
