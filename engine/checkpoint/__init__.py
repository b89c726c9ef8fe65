"""Checkpoints: a folder from which a run goes on as if it had never stopped. No file in it can run code."""
