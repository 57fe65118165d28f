"""Selection of elements by a condition."""
