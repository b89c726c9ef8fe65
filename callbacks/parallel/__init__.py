"""Callbacks for training on several devices or ranks: DataParallel, DDP, ZeRO-1, FSDP2."""
