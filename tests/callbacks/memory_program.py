"""Trainings on two ranks with compiled regions and CollectGarbage, compared with a plain training."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from support.outcomes import same_weights, weights
from support.ranks import trainer_of
from trainbus import CollectGarbage, Compile, OptimizerInBackward, every
from trainbus.events import ArgumentError


def main(folder: str) -> None:
    """Train on this rank with and without the callbacks. Write a file if all results are as expected."""
    plain = trainer_of(f"{folder}/plain")
    plain.train()
    collected: list[int] = []
    compiled = trainer_of(f"{folder}/regions", Compile("eager", regions=(nn.Linear,)))
    compiled.train()
    assert same_weights(weights(compiled.model), weights(plain.model))
    built = trainer_of(f"{folder}/collected", CollectGarbage(every(3)))
    gc.callbacks.append(lambda phase, _: collected.append(built.state.global_step) if phase == "start" else None)
    built.train()
    gc.callbacks.clear()
    assert same_weights(weights(built.model), weights(plain.model))
    ranks = built.run.ranks.gather_objects([step for step in collected if 0 < step < built.state.max_steps])
    assert ranks[0] == ranks[1] == [3, 6], ranks
    sharded = trainer_of(f"{folder}/sharded", Compile("eager", regions=(nn.Linear,)), sharding="stage3")
    sharded.train()
    for name, weight in sharded.model.named_parameters():
        torch.testing.assert_close(weight.full_tensor(), plain.model.get_parameter(name))
    for wrong, said in ((CollectGarbage(every("10min")), "the clocks"), (OptimizerInBackward(), "single process")):
        with pytest.raises(ArgumentError, match=said):
            trainer_of(f"{folder}/wrong", wrong, max_grad_norm=0).train()
    Path(folder, f"done-{built.run.ranks.rank}").touch()


if __name__ == "__main__":
    main(sys.argv[1])
