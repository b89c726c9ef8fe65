"""Hard links instead of copies, for files that did not change since the previous checkpoint.

For example, frozen weights are the same in every checkpoint. With hard links, the checkpoints share the bytes on the
disk. The bytes stay until all checkpoints with the file are deleted.
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
        """Store the arguments. The method `replace` makes the links.

        Args:
            folder: the earlier checkpoint.
            digests: the digests of the files in `folder`, by name. Files without a digest are never linked.
        """
        self._folder = folder
        self._digests = digests

    def __contains__(self, name: str) -> bool:
        """Return whether the argument `digests` of the constructor has a digest for the file `name`."""
        return name in self._digests

    def replace(self, path: Path, name: str, digest: AnyDigest) -> bool:
        """Replace a new file by a link to the earlier file if both have the same bytes. Return whether it is replaced.

        The bytes are compared, not only the digests. So no link leads to an earlier file that was damaged or edited.

        Args:
            path: the new file, completely written.
            name: the name of the file in both checkpoints.
            digest: the digest of the new file.
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
"""Links to no file."""


def links_to_last(output_dir: Path) -> Links:
    """Return a `Links` object for the checkpoint with the highest step in a folder.

    If there is no checkpoint, or no valid manifest lists its files, the object links to no file.
    """
    steps = {step: path for path in output_dir.iterdir() if (step := step_of(path)) is not None}
    if not steps:
        return NO_LINKS
    last = CheckpointFolder(steps[max(steps)])
    try:
        return Links(last.path, last.digests or {})
    except (CheckpointError, OSError) as error:
        logger.info("No file is linked to %s: %s", last.path, error)
        return NO_LINKS
