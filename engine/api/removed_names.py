"""Names of transformers' Trainer that this Trainer does not have, each with its replacement."""

from __future__ import annotations

_WRAPPED = (
    "write a callback that wraps the model: `run.seams.fill(id, wrap_model=...)` in `on_setup`. `ShardedDDP` is an "
    "example."
)
_LOOP = "the loop cannot be replaced. Write a handler for an event of the loop. `docs/events.md` lists the events."
_CLIP = (
    "write a callback that clips the gradients: `run.seams.fill(id, clip=...)` in `on_setup`. To change gradients "
    "before clipping, handle `on_gradients`."
)
_RESTORE = (
    "handle `on_load`, which runs after everything is restored. To save the state of a callback, define `state_dict`."
)
_RANKS = "accelerate is not used. `run.ranks` is the process group. Callbacks such as `DDP` and `FSDP` wrap the model."
_GATHER = "override `evaluation_loop`. `accelerator.gather_for_metrics` gathers."
_SEARCH = "`hyperparameter_search` runs the search. A callback sees each evaluation in `on_evaluate`."

NEVER_CALLED: dict[str, str] = {
    "_build_accelerator_args": _RANKS,
    "_defer_fsdp_gradient_reduction": (
        "write a callback that defers the reduction: `run.seams.fill(id, synchronise=...)` in `on_setup`."
    ),
    "_finalize_training": "handle `on_train_end` or `on_close`.",
    "_get_output_dir": "read `args.output_dir`.",
    "_has_mixed_mesh_grads": _CLIP,
    "_hp_search_setup": _SEARCH,
    "_init_training_state": "handle `on_train_begin`.",
    "_issue_warnings_after_load": _RESTORE,
    "_mixed_mesh_grad_norm": _CLIP,
    "_nested_gather": _GATHER,
    "_pad_across_processes": _GATHER,
    "_prepare_context_parallel_inputs": "override `_prepare_inputs`.",
    "_prepare_for_training": "handle `on_setup`.",
    "_report_to_hp_search": _SEARCH,
    "_run_epoch": _LOOP,
    "_sync_replicated_trainable_parameters": _WRAPPED,
    "_track_num_input_tokens": "count the tokens in a handler of `on_batch`.",
    "_tune_save_checkpoint": _SEARCH,
    "_update_auto_batch_size": "`auto_find_batch_size` updates `run.train_batch_size`.",
    "propagate_args_to_deepspeed": _RANKS,
    "set_initial_training_values": "handle `on_train_begin`, and read the length of the run from `run.plan`.",
    "store_flos": "override `floating_point_ops`. The callback `CountFlops` adds the results to `state.total_flos`.",
    "torch_jit_model_eval": "use `torch_compile`.",
}
"""Method of transformers' Trainer that trainbus never calls -> what to use instead."""

MISSING: dict[str, str] = {
    **NEVER_CALLED,
    "_created_lr_scheduler": "`trainer.lr_scheduler` is None until the schedule exists.",
    "_eval_dataloaders": "`run.eval_dataloader` is the loader of the most recent evaluation.",
    "_loggers_initialized": "each tracker is a callback that initializes itself.",
    "_initial_global_step": "handle `on_train_begin`, and read `state.global_step`.",
    "_initial_num_input_tokens_seen": "handle `on_train_begin`, and read `state.num_input_tokens_seen`.",
    "_memory_tracker": "`MemoryMetrics` measures memory.",
    "_mixed_mesh_grads": "tensor parallelism is not supported.",
    "_trial": "`model_init` receives the trial of a search.",
    "compute_objective": "pass the function to `hyperparameter_search`.",
    "current_flos": "use `state.total_flos`.",
    "deepspeed": "`trainer.model_wrapped` is DeepSpeed's engine when DeepSpeed trains the model.",
    "gather_function": "call `accelerator.gather_for_metrics`.",
    "hp_name": "pass `hp_name` to `hyperparameter_search`.",
    "hp_search_backend": "pass `backend` to `hyperparameter_search`.",
    "hp_space": "pass `hp_space` to `hyperparameter_search`.",
    "is_distributed_loading_by_transformers": "every rank loads the whole model.",
    "is_fsdp_xla_enabled": "XLA is not supported.",
    "is_fsdp_xla_v1_enabled": "XLA is not supported.",
    "is_fsdp_xla_v2_enabled": "XLA is not supported.",
    "is_model_parallel": "the model is on one device, `args.device`.",
    "model_preparation_time": "`MeasureGoodput` measures the time before the first step.",
    "neftune_hook_handle": "the callback `NEFTune` adds and removes the noise.",
    "place_model_on_device": "the Trainer moves the model to `args.device` at construction.",
}
"""Attribute of transformers' Trainer that trainbus does not have -> what to use instead."""
