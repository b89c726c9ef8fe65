"""Reading checkpoints: listing, choosing, verifying and resuming."""
