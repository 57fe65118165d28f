"""Products with sparse matrices in coordinate format, and the elements of dense products at such coordinates."""
