"""EventName: the type of the names of events, for type checkers."""

# Generated from events/catalog.py by `make docs`. Change the catalogue instead of this file.

from __future__ import annotations

from typing import Literal

EventName = Literal[
    "on_init_end",
    "on_setup",
    "on_load",
    "on_train_begin",
    "on_epoch_begin",
    "on_step_begin",
    "on_batch",
    "on_loss",
    "on_substep_end",
    "on_gradients",
    "on_pre_optimizer_step",
    "on_optimizer_step",
    "on_step_end",
    "on_log_due",
    "on_log",
    "on_evaluate_due",
    "on_evaluate_begin",
    "on_prediction_step",
    "on_evaluate_dataset",
    "on_evaluate",
    "on_evaluate_end",
    "on_save_due",
    "on_save_begin",
    "on_snapshot",
    "on_commit",
    "on_save",
    "on_delete",
    "on_push_begin",
    "on_epoch_end",
    "on_best_loaded",
    "on_train_end",
    "on_predict",
    "on_exception",
    "on_close",
    "on_end",
]
"""The name of an event of the catalogue."""
