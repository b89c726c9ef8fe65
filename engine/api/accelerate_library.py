"""Initialises the state of the library accelerate, for libraries that call its functions."""

from __future__ import annotations

import importlib

from ...events.imported import imported
from ..run import Run

_STRATEGIES = {"ACCELERATE_USE_DEEPSPEED": "false", "ACCELERATE_USE_FSDP": "false"}
"""Callbacks shard the model, so accelerate gets no plugin for these strategies, and must not look for one."""
_ALONE = {"LOCAL_RANK": "-1", "WORLD_SIZE": "1"}
"""With these variables, accelerate does not create a process group."""


def initialize_accelerate(run: Run) -> None:
    """Initialise the `AcceleratorState` of accelerate if the program has imported accelerate.

    Some functions of accelerate, such as `set_seed(seed, device_specific=True)`, raise an error before this
    initialisation. In transformers, the constructor of the Trainer initialises accelerate. Libraries such as TRL rely
    on this.

    If a program has initialised accelerate itself, the function does nothing, with one exception: if accelerate does
    not know all ranks, the function initialises it again. On CPUs, this happens if the program calls `PartialState()`
    before it builds the Trainer.
    """
    accelerate = imported("accelerate.state")
    if accelerate is None:
        return
    ranks = run.ranks.world_size
    if accelerate.PartialState._shared_state.get("num_processes", ranks) != ranks:
        accelerate.AcceleratorState._reset_state(reset_partial_state=True)
    if accelerate.AcceleratorState._shared_state:
        return
    utils = importlib.import_module("accelerate.utils")
    on_cpu = run.device.type == "cpu"  # before the block below changes LOCAL_RANK, which numbers the device
    with utils.patch_environment(**_STRATEGIES, **(_ALONE if run.ranks.single_process else {})):
        accelerate.AcceleratorState(
            mixed_precision=run.args.mixed_precision,
            cpu=on_cpu,
            dynamo_plugin=utils.TorchDynamoPlugin(backend="no"),
            _from_accelerator=True,
        )
