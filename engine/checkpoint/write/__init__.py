"""Writing checkpoints: model files, commit, background writer, disk space and retention."""
