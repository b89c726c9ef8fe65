"""Worker processes of a loader: how they start, and which signals they ignore."""
