"""A training on several ranks. One is killed in the first session, and the next session resumes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from support.ranks import Somewhere, send, trainer_of, weight_values, write_json

if __name__ == "__main__":
    folder, mark = Path(sys.argv[1]), Path(sys.argv[1]) / "killed"
    with open(folder / f"starts-{os.environ['RANK']}", "a", encoding="utf-8") as file:
        file.write("started\n")
    callbacks = [Somewhere("backward", int(sys.argv[2]), lambda: (mark.touch(), send("SIGKILL")()))]
    trainer = trainer_of(folder, *callbacks if not mark.exists() else [], max_steps=24, save_steps=2)
    trainer.train(resume_from_checkpoint="auto")
    write_json(folder / f"weights-{os.environ['RANK']}.json", weight_values(trainer.model))
