"""Preview: the real state machine and the real deciding callbacks on a virtual clock, without model and data."""
