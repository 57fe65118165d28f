"""Recurrent layers: LSTM, GRU and RNN."""
