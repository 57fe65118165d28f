"""What the records share: the record itself, arrays to call ops with, exact sums, and the oracles of a family."""
