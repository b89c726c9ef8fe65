"""Lightning: callbacks that were written for it."""
