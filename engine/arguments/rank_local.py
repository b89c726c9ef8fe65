"""The names of the arguments that may differ between ranks. Other arguments must be equal on all ranks."""

from __future__ import annotations

from dataclasses import fields

from .script import ScriptArguments

RANK_LOCAL = frozenset(
    {
        *("local_rank", "use_cpu", "ddp_timeout", "log_level", "log_level_replica", "log_on_each_node", "disable_tqdm"),
        *("output_dir", "logging_dir", "report_to", "run_name", "project"),
        *("trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
        *("push_to_hub", "hub_token", "hub_private_repo", "hub_model_id", "hub_strategy", "hub_revision"),
        *("hub_always_push", "dataloader_num_workers", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("dataloader_prefetch_factor", "dataloader_multiprocessing_context"),
        *(field.name for field in fields(ScriptArguments)),
    }
)
"""The names: arguments for the device, logs, trackers, output folders, data workers, the Hub, and scripts."""
