"""The `trainbus` command line: manage the checkpoints of a folder, and estimate memory."""
