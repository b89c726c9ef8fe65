"""Two ranks resume weights that are not contiguous, adapters and extra state to the bits of the uninterrupted run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.processes import HUGGING_FACE, run_on_two

WAYS = (
    *("ddp", "stage1", "simple", "adapters"),
    *("adapters, fsdp", "extra state, fsdp", "extra state, simple"),
)
PROGRAM = Path(__file__).with_name("layout_program.py")


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_two_ranks_resume_with_strides_and_with_adapters(tmp_path: Path) -> None:
    run_on_two(PROGRAM, tmp_path, timeout=180, imported=HUGGING_FACE)
    for rank in range(2):
        assert torch.load(tmp_path / f"found-{rank}.pt") == dict.fromkeys(WAYS, True)
