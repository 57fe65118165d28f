"""The gates of a long short-term memory (LSTM)."""
