"""The arguments for `fast_dev_run`: a very short training and evaluation, to test a program."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

Arguments = TypeVar("Arguments", bound=Any)


def trial_arguments(args: Arguments, evaluates: bool) -> Arguments:
    """Return a copy of the arguments for a run of `fast_dev_run` steps, without saves, trackers and pushes.

    If `fast_dev_run` is not set, return `args` itself. Callbacks that the user passes to the Trainer, such as a
    `Checkpoint`, do not change.

    Args:
        args: the training arguments.
        evaluates: whether there is an eval dataset. If there is one, the run evaluates after its last step.
    """
    steps = int(args.fast_dev_run)
    if not steps:
        return args
    shortened = copy.copy(args)
    shortened._set(
        max_steps=steps,
        logging_steps=1,
        logging_strategy="steps",
        limit_eval_batches=steps,
        eval_strategy="steps" if evaluates else "no",
        eval_steps=steps,
        eval_delay=0,
        minimum_eval_times=None,
        save_strategy="no",
        load_best_model_at_end=False,
        push_to_hub=False,
        report_to="none",
        do_export=False,
        fast_dev_run=False,
    )
    return shortened
