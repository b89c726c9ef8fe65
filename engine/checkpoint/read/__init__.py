"""Reading checkpoints: one saved checkpoint, listing, choosing, verifying and resuming."""
