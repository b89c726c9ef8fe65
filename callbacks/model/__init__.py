"""Callbacks that change the model: freezing, EMA, NEFTune, compilation, gradient checkpointing, XLNet memory."""
