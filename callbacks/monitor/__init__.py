"""Callbacks that show or check a run: progress, status file, counters, memory, non-finite values."""
