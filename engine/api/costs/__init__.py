"""The costs of a training: time by callback and by part, such as `forward`, and the part that limits the speed."""
