"""What the operators and the capture share; imports nothing from either."""
