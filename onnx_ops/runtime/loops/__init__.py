"""Native code for the loops that ops declare: maps and sums."""
