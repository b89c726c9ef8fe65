"""Logging, evaluation, checkpoints and best model."""
