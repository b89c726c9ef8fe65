"""fairscale: OSS with ShardedDataParallel, and FullyShardedDataParallel on CUDA."""
