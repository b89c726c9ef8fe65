"""The costs of a training: time by part and by callback, and the part that limits the speed."""
