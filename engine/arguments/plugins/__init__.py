"""Plugins: find installed plugins, select the plugins of a run, and read callbacks that are written as text."""
