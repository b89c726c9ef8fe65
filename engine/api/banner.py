"""The lines that a training logs before its first step. They have the same texts as in transformers."""

from __future__ import annotations

import logging
from typing import Any

from torch.nn.parameter import is_lazy

from ..data.build import length_of
from ..optim.sizes import count_elements

logger = logging.getLogger(__name__)


def announce_training(trainer: Any) -> None:
    """Log the sizes of a training at level INFO: samples, epochs, steps, batch sizes and trainable parameters.

    Args:
        trainer: the Trainer. Its loader, its run plan and its optimizer must exist.
    """
    run, args = trainer.run, trainer.args
    loader, plan, state = run.train_dataloader, run.plan, run.state
    # A loader always has the method `__len__`, even if its dataset is a stream without a length. So ask for the length.
    sized = length_of(loader) is not None or length_of(getattr(loader, "dataset", None)) is not None
    samples = trainer.num_examples(loader) if sized else run.train_batch_size * plan.max_steps
    # Do not call `get_num_trainable_parameters` here: a program may override it, and transformers does not call it
    # here.
    trainable = count_elements(weight for weight in run.model.parameters() if weight.requires_grad)
    logger.info("***** Running training *****")
    logger.info("  Num examples = %s", f"{samples:,}")
    logger.info("  Num Epochs = %s", f"{plan.epochs:,}")
    logger.info("  Num update steps per epoch = %s", f"{plan.steps_per_epoch:,}")
    logger.info("  Instantaneous batch size per device = %s", f"{args.per_device_train_batch_size:,}")
    logger.info(
        "  Total train batch size (w. parallel, distributed & accumulation) = %s",
        f"{trainer.get_total_train_batch_size(args):,}",
    )
    logger.info("  Gradient Accumulation steps = %s", args.gradient_accumulation_steps)
    logger.info("  Total optimization steps = %s", f"{plan.max_steps:,}")
    logger.info("  Number of trainable parameters = %s", f"{trainable:,}")
    for line in trainer.plugins:
        logger.info("  Plugin %s", line)
    if lazy := sum(map(is_lazy, run.model.parameters())):
        logger.info("  %d parameters have no shape before the first batch, and are not in that number", lazy)
    if state.global_step:
        logger.info(
            "  Resuming training from checkpoint with epoch %s and global step %d", state.epoch, state.global_step
        )
