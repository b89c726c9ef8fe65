"""SWA measures BatchNorm statistics over the batches of all ranks."""

from pathlib import Path

import pytest
import torch

from support.processes import run_on_two

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(200)]


@pytest.mark.parametrize("way", ["ddp", "stage3"])
def test_the_statistics_are_means_over_the_batches_of_all_ranks(way: str, tmp_path: Path) -> None:
    run_on_two(Path(__file__).with_name("batchnorm_program.py"), tmp_path, way, timeout=100)
    for rank in (0, 1):
        found = torch.load(tmp_path / f"{way}{rank}.pt")
        batches = found["x"].split(4)
        torch.testing.assert_close(found["mean"], torch.stack([batch.mean(0) for batch in batches]).mean(0))
        torch.testing.assert_close(found["variance"], torch.stack([batch.var(0) for batch in batches]).mean(0))
