"""Names of transformers' Trainer that this Trainer does not have, each with its replacement."""

from __future__ import annotations

_AUTOCAST = "`MixedPrecision` runs the forward pass in half precision. Put a context of your own into `compute_loss`."
_WRAPPED = "a callback wraps the model with `run.seams.fill(id, wrap_model=...)` in `on_setup`. See `ShardedDDP`."
_COLUMNS = "override `_set_signature_columns_if_needed`, or set `remove_unused_columns=False` and change the dataset."
_BATCHES = "override `get_train_dataloader` to make other batches, or change each batch in `on_batch`."
_ITEMS = "override `count_items(batches)`. It counts the items that the losses of a step are averaged over."
_LOOP = "the loop cannot be replaced. Handle the event you need; `trainer.describe()` lists them."
_CLIP = "a callback clips with `run.seams.fill(id, clip=...)` in `on_setup`. `on_gradients` runs before clipping."
_CHECKPOINT = "handle `on_save_begin` to add to a checkpoint or to veto it, or `on_save` after it is written."
_RESTORE = "handle `on_load`, which runs after everything is restored. A callback saves its state with `state_dict`."
_BEST = "`KeepBest` loads the best model. Add it to the callbacks, or write your own."
_DUE = "handle `on_log`, `on_evaluate` or `on_save`, or request one: `control.request('save', reason=...)`."
_LOADER = "override `get_train_dataloader`, `get_eval_dataloader` or `get_test_dataloader`."
_RANKS = "accelerate is not used. `run.ranks` is the process group, and `DDP`, `FSDP` and others are callbacks."
_GATHER = "override `evaluation_loop`. `accelerator.gather_for_metrics` gathers."
_SEARCH = "`hyperparameter_search` runs the search. A callback sees each evaluation in `on_evaluate`."
_HUB = "`push_to_hub` pushes, and the callback `PushToHub` pushes during training. Handle `on_push_begin`."
_ARGUMENTS = "check in `__init__` after `super().__init__(...)` and raise there."

NEVER_CALLED: dict[str, str] = {
    "_build_accelerator_args": _RANKS,
    "_clip_grad_norm": _CLIP,
    "_defer_fsdp_gradient_reduction": "a callback does this with `run.seams.fill(id, synchronise=...)` in `on_setup`.",
    "_determine_best_metric": _BEST,
    "_evaluate": "override `evaluate`.",
    "_finalize_training": "handle `on_train_end` or `on_close`.",
    "_finish_current_push": _HUB,
    "_get_collator_with_removed_columns": _COLUMNS,
    "_get_dataloader": _LOADER,
    "_get_grad_norm": _CLIP,
    "_get_learning_rate": "handle `on_log` and change `logs['learning_rate']`.",
    "_get_num_items_in_batch": _ITEMS,
    "_get_output_dir": "the folder is `args.output_dir`.",
    "_has_mixed_mesh_grads": _CLIP,
    "_hp_search_setup": _SEARCH,
    "_init_training_state": "handle `on_train_begin`.",
    "_inner_training_loop": _LOOP,
    "_issue_warnings_after_load": _RESTORE,
    "_load_best_model": _BEST,
    "_load_callback_state": _RESTORE,
    "_load_from_checkpoint": _RESTORE,
    "_load_optimizer_and_scheduler": _RESTORE,
    "_load_rng_state": _RESTORE,
    "_load_scaler": _RESTORE,
    "_maybe_log_save_evaluate": _DUE,
    "_mixed_mesh_grad_norm": _CLIP,
    "_move_model_to_device": "the Trainer moves the model to `args.device` at construction. Do more in `on_setup`.",
    "_nested_gather": _GATHER,
    "_pad_across_processes": _GATHER,
    "_prepare_context_parallel_inputs": "override `_prepare_inputs`.",
    "_prepare_for_training": "handle `on_setup`.",
    "_prepare_input": "override `_prepare_inputs`.",
    "_push_from_checkpoint": _HUB,
    "_remove_unused_columns": _COLUMNS,
    "_report_to_hp_search": _SEARCH,
    "_run_epoch": _LOOP,
    "_save_checkpoint": _CHECKPOINT,
    "_save_optimizer_and_scheduler": _CHECKPOINT,
    "_save_rng_state": _CHECKPOINT,
    "_save_scaler": _CHECKPOINT,
    "_sync_replicated_trainable_parameters": _WRAPPED,
    "_track_num_input_tokens": "count in `on_batch`.",
    "_tune_save_checkpoint": _SEARCH,
    "_update_auto_batch_size": "`auto_find_batch_size` updates it.",
    "_validate_args": _ARGUMENTS,
    "_wrap_model": _WRAPPED,
    "autocast_smart_context_manager": _AUTOCAST,
    "compute_loss_context_manager": _AUTOCAST,
    "create_accelerator_and_postprocess": _RANKS,
    "get_batch_samples": _BATCHES,
    "get_cp_size": "every rank has its own batches.",
    "get_sp_size": "every rank has its own batches.",
    "get_tp_size": "every rank has its own batches.",
    "propagate_args_to_deepspeed": _RANKS,
    "set_initial_training_values": "`run.plan` has the length of the run. Handle `on_train_begin`.",
    "store_flos": "`CountFlops` adds to `state.total_flos`. Override `floating_point_ops`.",
    "torch_jit_model_eval": "use `torch_compile`.",
}
"""Method of transformers' Trainer that trainbus never calls -> what to use instead."""

MISSING: dict[str, str] = {
    **NEVER_CALLED,
    "_created_lr_scheduler": "`trainer.lr_scheduler` is None until the schedule exists.",
    "_eval_dataloaders": "`run.eval_dataloader` is the loader of an evaluation.",
    "_globalstep_last_logged": "`run.losses` has the losses since the last log.",
    "_loggers_initialized": "trackers are callbacks.",
    "_memory_tracker": "`MemoryMetrics` measures memory.",
    "_total_loss_scalar": "`run.losses` has the losses since the last log.",
    "_tr_loss": "`run.losses` has the losses since the last log.",
    "_loss_shifts_labels": "use `trainer.objective.shifts_labels`.",
    "_mixed_mesh_grads": "tensor parallelism is not supported.",
    "can_return_loss": "use `trainer.objective.returns_loss`.",
    "current_flos": "use `state.total_flos`.",
    "current_gradient_accumulation_steps": "use `args.gradient_accumulation_steps`.",
    "deepspeed": "`trainer.model_wrapped` is DeepSpeed's engine when DeepSpeed trains the model.",
    "gather_function": "call `accelerator.gather_for_metrics`.",
    "hp_name": "pass it to `hyperparameter_search`.",
    "hp_search_backend": "pass it to `hyperparameter_search`.",
    "is_distributed_loading_by_transformers": "every rank loads the whole model.",
    "is_fsdp_xla_enabled": "XLA is not supported.",
    "is_fsdp_xla_v1_enabled": "XLA is not supported.",
    "is_fsdp_xla_v2_enabled": "XLA is not supported.",
    "is_model_parallel": "the model is on one device, `args.device`.",
    "label_smoother": "use `trainer.objective.smoother`.",
    "neftune_noise_alpha": "use `args.neftune_noise_alpha`.",
    "place_model_on_device": "the Trainer moves the model to `args.device` at construction.",
}
"""Attribute of transformers' Trainer that trainbus does not have -> what to use instead."""
