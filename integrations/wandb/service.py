"""Check and end wandb-core: the local process that writes the run files and uploads them for the package wandb."""

from __future__ import annotations

import logging
import os
from typing import Any

import wandb
from wandb.sdk import wandb_init, wandb_setup
from wandb.sdk.lib import module as client_module

logger = logging.getLogger(__name__)


def has_died() -> bool:
    """Return whether the wandb-core that this program started has ended, for example because memory ran out."""
    process = _process(wandb_setup.singleton())
    return process is not None and process.poll() is not None


def restart() -> bool:
    """Kill the wandb-core that this program started, and return True. If this program started none, return False.

    After a kill, the open runs of wandb end without a last record. The next run starts a new wandb-core.

    If this program has no connection to a wandb-core, the function removes the environment variable `WANDB_SERVICE`.
    This variable may name the wandb-core of a program that has ended.
    """
    library = wandb_setup.singleton()
    process = _process(library)
    if process is None:
        if getattr(library, "_connection", None) is None:
            os.environ.pop("WANDB_SERVICE", None)
        return False
    process.kill()
    process.wait()
    try:
        wandb.teardown()
    except (Exception, SystemExit) as error:  # its connection is broken, and its exit code is the code of the kill
        logger.debug("The service of wandb was restarted: %s", error)
    client_module.unset_globals()
    return True


def has_open_runs() -> bool:
    """Return whether this program has open runs of wandb."""
    return wandb_setup.singleton().most_recent_active_run is not None


def make_global(live: Any) -> None:
    """Make an open run `wandb.run`, so that functions such as `wandb.log` write to it."""
    if set_global := getattr(wandb_init, "_set_global_run", None):  # the client has no public function
        set_global(live)


def _process(library: Any) -> Any:
    connection = getattr(library, "_connection", None)
    return getattr(getattr(connection, "_proc", None), "_process", None)
