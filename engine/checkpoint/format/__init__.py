"""The files of a checkpoint: names, encoding, hashes and manifest."""
