"""Native code for `Loop`: elementwise outputs and sums."""
