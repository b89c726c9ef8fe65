"""Base classes and helpers that several callbacks share: cadence, tracker, metric names."""
