"""Callbacks that stop a run: early stopping, limits of steps and time, signals, NaN guard."""
