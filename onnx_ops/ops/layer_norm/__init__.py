"""Layer normalization: its gradient; by the root mean square alone, with its gradient."""
