"""Distributed training: ranks, rendezvous, consensus on flags, consistency checks, failures and sharding strategies."""
