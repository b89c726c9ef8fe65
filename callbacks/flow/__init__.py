"""Callbacks for logging, evaluation, checkpoints and the best model."""
