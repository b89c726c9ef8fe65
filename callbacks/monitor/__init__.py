"""Watching a run: progress, status file, counters, memory, non-finite values."""
