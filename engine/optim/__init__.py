"""Optimizers and learning-rate schedules."""

from ...lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "build": (
            "build_optimizer",
            "decay_parameter_names",
            "parameter_groups",
        ),
        "schedules": ("get_scheduler",),
    },
)
