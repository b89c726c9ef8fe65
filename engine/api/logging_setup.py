"""Set up Python's logging, so that the messages of trainbus are printed."""

from __future__ import annotations

import logging


def print_messages(level: int) -> None:
    """Configure Python's logging to print the messages that trainbus logs later.

    Messages go to stderr. If the program has configured a handler for them, they go only to this handler.

    Args:
        level: the lowest level to print, such as `logging.INFO`.
    """
    logger = logging.getLogger(__name__.partition(".")[0])
    logger.setLevel(level)
    if not logger.hasHandlers():
        logger.addHandler(logging.StreamHandler())
