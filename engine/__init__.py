"""The engine: the loop, the step, evaluation, data, checkpoints, and the Trainer that puts them together."""
