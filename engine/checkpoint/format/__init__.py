"""The files of a checkpoint: names, manifest, hashes, and how nested values and tensors are encoded."""
