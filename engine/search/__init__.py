"""Searches: hyperparameters, and the batch size that fits in memory."""

from ...lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "hyperparameters": (
            "BestRun",
            "Reporter",
            "Search",
            "SearchBackend",
        ),
        "objective": ("default_compute_objective",),
    },
)
