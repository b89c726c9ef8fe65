"""Checkpoints: the files on disk (`format`), writing them (`write`), and reading, verifying and resuming (`read`)."""
