"""Bundled metrics: streaming implementations of common metrics. They need no other package and no network.

A metric is used like a module of the library `evaluate`: call `add_batch` with `predictions` and `references` for each
batch, then `compute`. The results equal the results of scikit-learn and seqeval, except for `perplexity` and
`exact_match`, which these packages do not have. The options of a metric are its fields. The metrics store counts and
sums instead of predictions, so they need little memory.
"""
