"""The dry batch: check the data, the model and the optimizer of a training before its first step."""
