"""Steps of optimizers: new parameters and state, from gradients."""
