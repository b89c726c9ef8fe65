"""Callbacks that end a run: early stopping, limits, signals, NaN guard."""
