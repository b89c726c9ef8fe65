"""Worker processes of a loader: how they start, which RNG states they use, and which signals they ignore."""
