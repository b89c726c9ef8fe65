"""Writing checkpoints: snapshot, model files, commit, background writer, disk space and retention."""
