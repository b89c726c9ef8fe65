"""Base classes and helpers that several callbacks share, such as `Cadence` and `RowTracker`."""
