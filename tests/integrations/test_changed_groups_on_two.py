"""Resume with another weight decay on two ranks: each way to shard gives each parameter its own optimizer state."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from support.processes import run_on_two

pytest.importorskip("deepspeed")
pytest.importorskip("fairscale")

pytestmark = [pytest.mark.world_size(2), pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The last weights of each resumed run, by change and way to shard."""
    folder = tmp_path_factory.mktemp("groups")
    run_on_two(Path(__file__).with_name("groups_program.py"), folder, timeout=200, DS_ACCELERATOR="cpu")
    return json.loads((folder / "found.json").read_text())


@pytest.mark.parametrize("change", ["0.1 to 0.0", "0.0 to 0.1"])
def test_all_ways_to_shard_resume_to_the_same_weights(found: dict[str, dict[str, Any]], change: str) -> None:
    ends = found[change]
    assert len(ends) == 8
    for way, weights in ends.items():
        assert weights.keys() == ends["ddp"].keys()
        for name, values in weights.items():
            assert values == pytest.approx(ends["ddp"][name], rel=1e-6), f"{way}, {name}"


def test_the_weight_decay_of_the_checkpoint_is_used(found: dict[str, dict[str, Any]]) -> None:
    assert found["0.1 to 0.0"]["ddp"] != found["0.0 to 0.1"]["ddp"]
