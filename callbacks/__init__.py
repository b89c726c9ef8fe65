"""Callbacks: one feature per file. Each hears events, decides by a pure function, and asks the control for things."""
