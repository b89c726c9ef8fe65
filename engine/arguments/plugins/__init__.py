"""Plugins: which are installed, which join a run, and callbacks that are written as text."""
