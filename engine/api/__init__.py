"""The methods of the Trainer, one file per subject. The other rooms do the work."""
