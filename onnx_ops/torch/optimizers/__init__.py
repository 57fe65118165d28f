"""Updates of optimizers as functions of tensors: those of torch.optim, and registered ones."""
