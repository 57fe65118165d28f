"""Training in epochs: data, learning rate schedules, validation, early stopping, checkpoints and logs."""
