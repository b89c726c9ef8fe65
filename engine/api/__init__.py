"""The methods of the Trainer, one file per subject. The other folders of `engine/` do the work."""
