"""SiLU."""
