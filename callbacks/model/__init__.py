"""Changes to the model: freezing, EMA, NEFTune, compilation, activation checkpointing."""
