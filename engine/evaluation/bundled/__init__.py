"""Bundled metrics: streaming implementations of common metrics. They need no other package and no network.

Each metric has the same results and the same interface as the module of the same name in the library `evaluate`: call
`add_batch` with `predictions` and `references` for each batch, then `compute`. The options of a metric are its fields.
The metrics keep counts and sums instead of predictions, so they need little memory.
"""
