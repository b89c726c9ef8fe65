"""The identity of a wandb run: which of its segments the script with `wandb sync` commands lists."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("wandb")

from trainbus.integrations.wandb.identity import Identity


@pytest.mark.parametrize(
    ("files", "offline", "expected"),
    [
        ((), True, True),  # the client has not created the file yet
        (("run-a.wandb",), True, True),
        (("run-a.wandb", "run-a.wandb.synced"), True, False),
        (("run-a.wandb",), False, False),
    ],
)
def test_the_script_lists_the_last_segment_until_it_is_uploaded(
    files: tuple[str, ...], offline: bool, expected: bool, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).touch()
    identity = Identity("a").with_segment(str(tmp_path), offline)
    assert bool(identity.listed) is expected
