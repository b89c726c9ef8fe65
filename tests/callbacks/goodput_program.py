"""Trains 40 steps of slow data, and evaluates and saves every 10 steps. With the word `kill` it dies after step 26."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from support.trainers import net_trainer
from trainbus.testing.tiny import net_samples

ROW_SECONDS = 0.005


class Slow(list[Any]):
    """Rows that take time to read."""

    def __getitem__(self, index: Any) -> Any:
        time.sleep(ROW_SECONDS)
        return super().__getitem__(index)


def note_end() -> None:
    """Write the present time. What comes later, such as the end of the interpreter, is no time of the session."""
    Path(folder, "ended.txt").write_text(str(time.time()))


def die() -> None:
    time.sleep(2)  # until a heartbeat has come
    note_end()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder, how = sys.argv[1:]
    plan: dict[str, Any] = {"max_steps": 40, "eval_strategy": "steps", "eval_steps": 10, "save_steps": 10}
    trainer = net_trainer(folder, train_dataset=Slow(net_samples(160)), **plan)
    trainer.on("on_evaluate_begin", lambda: time.sleep(0.05), id="SlowEvaluation")
    trainer.on("on_step_end", lambda: time.sleep(0.01), id="SlowStep")
    if how == "kill":
        trainer.on("on_step_end", die, once=26, id="Die")
    trainer.train(resume_from_checkpoint="auto")
    note_end()
