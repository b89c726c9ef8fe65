"""Trains the run of test_record in a folder. With a place, such as `on_step_end:6`, a SIGKILL ends it there."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from test_record import at, build


def die(*_: Any) -> None:
    while not (Path(folder) / "checkpoint-4").exists():
        time.sleep(0.01)  # the checkpoint is written in the background
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder, *places = sys.argv[1:]
    killers = [at(event, int(step), die) for event, step in (place.split(":") for place in places)]
    build(Path(folder), *killers).train(resume_from_checkpoint="auto")
