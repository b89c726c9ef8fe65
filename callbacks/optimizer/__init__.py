"""Callbacks for the optimizer and the learning-rate schedule."""
