"""The steps of a long short-term memory (LSTM)."""
