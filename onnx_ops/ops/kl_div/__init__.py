"""The Kullback-Leibler divergence and its gradients."""
