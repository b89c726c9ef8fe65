"""What several callbacks share: cadence, tracker base and metric names."""
