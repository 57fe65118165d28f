"""Max pooling with the places of the maxima, and its gradient."""
