"""Libraries on top of transformers' Trainer. Without its package, the tests of a library are skipped."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", autouse=True)
def offline():
    """Make the libraries neither download nor report anything."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setenv("CI", "1")  # TRL sends nothing then
        yield
