"""Bundled metrics: streaming implementations of common metrics. They need no other package and no network.

Each has the results of the module of the same name of the library `evaluate`, and its interface: `add_batch` with
`predictions` and `references`, then `compute`. The options are fields. They hold counts and sums, not predictions.
"""
