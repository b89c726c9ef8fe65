"""Trains two ranks on packed and on padded samples. torchrun starts it."""

import json
import sys

import torch
from packing_cases import padded, trainer_of

from trainbus import Packing


def main(folder):
    """Write down the losses, the farthest weights and the counted samples."""
    found = {}
    for average in (True, False):
        runs = []
        for name, collator in (("padded", padded), ("packed", Packing())):
            path = f"{folder}/{name}-{average}"
            run = trainer_of(path, "llama", collator, average_tokens_across_devices=average, ddp_timeout=60)
            run.train()
            runs.append((run, run.evaluate()["eval_loss"]))
        (one, one_loss), (other, other_loss) = runs
        weights = zip(one.model.parameters(), other.model.parameters())
        found[str(average)] = {
            "farthest": max(float((a - b).detach().abs().max()) for a, b in weights),
            "moved": float(torch.stack([row["loss"] * torch.ones(1) for row in one.state.log_history[:2]]).diff(dim=0)),
            "losses": [[row["loss"] for row in run.state.log_history if "loss" in row] for run, _ in runs],
            "evaluated": [one_loss, other_loss],
            "samples": [run.state.samples_seen for run, _ in runs],
        }
    if one.is_world_process_zero():
        with open(f"{folder}/found.json", "w", encoding="utf-8") as file:
            json.dump(found, file)


if __name__ == "__main__":
    main(sys.argv[1])
