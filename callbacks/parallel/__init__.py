"""Training on several devices or processes: DataParallel, DDP, ZeRO-1, FSDP2."""
