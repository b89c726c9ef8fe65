"""Processes: ranks, rendezvous, agreement on flags, consistency checks, failures, and ways to shard."""
