"""The order of subscribers does not depend on the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parent.parent / "events" / "order_program.py"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_order_is_the_same_under_a_hundred_hash_seeds():
    printed = [
        subprocess.run(
            [sys.executable, str(PROGRAM)],
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in range(100)
    ]
    assert len(printed[0].splitlines()) > 100
    assert len(set(printed)) == 1
