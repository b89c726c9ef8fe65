"""Bundled metrics: streaming implementations of common metrics. They need no other package and no network.

Each has the same results and the same interface as the module with this name in the library `evaluate`: `add_batch`
with `predictions` and `references`, then `compute`. The options are fields. The metrics keep counts and sums, not
predictions.
"""
