"""Hard links instead of copies, for files that did not change since the previous checkpoint.

A frozen part of a model is the same in every checkpoint. With a link, all checkpoints share its bytes on the disk. The
file stays until all checkpoints that have it are deleted.
"""

from __future__ import annotations

import filecmp
import logging
import os
from collections.abc import Mapping
from pathlib import Path

from ....events.errors import CheckpointError
from ..format.files import step_of
from ..format.folder import CheckpointFolder
from ..format.hashing import AnyDigest

logger = logging.getLogger(__name__)


class Links:
    """Replaces new files by hard links to equal files of an earlier checkpoint."""

    def __init__(self, folder: Path, digests: Mapping[str, AnyDigest]) -> None:
        """Create an object that links to the files in `folder`.

        Args:
            folder: the earlier checkpoint.
            digests: the digests of its files by name. Files without a digest are never linked.
        """
        self._folder = folder
        self._digests = digests

    def __contains__(self, name: str) -> bool:
        """Return whether the earlier checkpoint has a file with this name."""
        return name in self._digests

    def replace(self, path: Path, name: str, digest: AnyDigest) -> bool:
        """Replace a new file by a link if the earlier file has the same bytes. Return whether it is replaced.

        The bytes are compared, not only the digests: a file that was damaged or edited after its save is not linked.

        Args:
            path: the new file, completely written.
            name: its name in the checkpoint.
            digest: its digest.
        """
        if self._digests.get(name) != digest:
            return False
        earlier, link = self._folder / name, path.with_name(f"{path.name}.link")
        try:
            # A link to a symbolic link may point to a file outside of the checkpoint, which makes it invalid.
            if earlier.is_symlink() or not filecmp.cmp(path, earlier, shallow=False):
                return False
            os.link(earlier, link)
            os.replace(link, path)
        except OSError as error:
            logger.info("%s is not linked to %s, so it stays a copy: %s", path, earlier, error)
            return False
        return True


NO_LINKS = Links(Path(), {})
"""Replaces nothing."""


def links_to_last(output_dir: Path) -> Links:
    """Return the links to the files of the checkpoint with the highest step; links to nothing if it has no manifest."""
    steps = {step: path for path in output_dir.iterdir() if (step := step_of(path)) is not None}
    if not steps:
        return NO_LINKS
    last = CheckpointFolder(steps[max(steps)])
    try:
        return Links(last.path, last.digests or {})
    except (CheckpointError, OSError) as error:
        logger.info("No file is linked to %s: %s", last.path, error)
        return NO_LINKS
