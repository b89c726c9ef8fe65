"""Data: from a dataset to windows of batches, in an order that depends on the seed and the epoch alone."""
