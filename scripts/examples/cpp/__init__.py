"""Training in C++: `files` writes step and data, train.cpp trains."""
