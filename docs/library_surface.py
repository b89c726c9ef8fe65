"""The names of transformers and accelerate that TRL, sentence-transformers and SetFit use, and how they work here.

Each name works, differs, or is refused.

`tests/libraries/test_surface.py` reads the source of the libraries and compares it with these tables.
"""

from __future__ import annotations

from collections.abc import Iterator

WORKS = {
    "Trainer": """add_callback args call_model_init can_return_loss compute_loss compute_loss_context_manager
        compute_loss_func control create_model_card current_gradient_accumulation_steps data_collator end eval_dataset
        evaluate evaluation_loop get_decay_parameter_names get_eval_dataloader get_optimizer_cls_and_kwargs
        get_test_dataloader get_train_dataloader hub_model_id is_deepspeed_enabled is_fsdp_enabled is_in_train
        is_world_process_zero label_names label_smoother log loss_is_scaled_for_ga lr_scheduler model
        model_accepts_loss_kwargs model_init model_wrapped optimizer pop_callback prediction_step processing_class
        push_in_progress push_to_hub remove_callback save_model state train train_dataset training_step""",
    "TrainingArguments": """average_tokens_across_devices bf16 dataloader_drop_last dataloader_num_workers
        dataloader_persistent_workers dataloader_pin_memory dataloader_prefetch_factor ddp_find_unused_parameters
        device do_eval eval_batch_size eval_delay eval_steps eval_strategy fp16 gradient_accumulation_steps
        gradient_checkpointing gradient_checkpointing_kwargs greater_is_better hub_always_push hub_model_id
        hub_private_repo hub_strategy hub_token label_smoothing_factor learning_rate liger_kernel_config
        load_best_model_at_end logging_first_step logging_strategy lr_scheduler_kwargs max_steps metric_for_best_model
        n_gpu num_train_epochs output_dir parallel_mode per_device_eval_batch_size per_device_train_batch_size
        push_to_hub remove_unused_columns resume_from_checkpoint run_name save_steps save_strategy save_total_limit
        seed should_save to_dict train_batch_size use_liger_kernel warmup_steps weight_decay world_size""",
    "TrainerState": """best_metric best_model_checkpoint epoch eval_steps global_step is_world_process_zero
        log_history max_steps num_input_tokens_seen num_train_epochs""",
    "Accelerator": """autocast device gather gather_for_metrics is_main_process local_process_index num_processes
        pad_across_processes print process_index reduce sync_gradients unwrap_model wait_for_everyone""",
}
"""Class of transformers or accelerate -> the names that work as in this class."""

DIFFERS = {
    "Trainer": {
        "accelerator": "The attribute is an object of trainbus. [The accelerator](#the-accelerator) lists its methods.",
        "callback_handler": (
            "A program may replace `call_event`. The replacement must call the DECIDE handlers that take "
            "`(args, state, control, **kwargs)`. The engine calls all other handlers."
        ),
        "get_tp_size": "The method always returns 1, because tensor parallelism is not supported.",
        "objective": (
            "The attribute is the object that computes the loss. In transformers, it is the value of a hyperparameter "
            "search."
        ),
    },
    "TrainingArguments": {
        "accelerator_config": "`use_configured_state` has no effect, because trainbus does not use accelerate.",
        "auto_find_batch_size": (
            "Each attempt starts from the weights and RNG states that the first attempt started from."
        ),
        "deepspeed_plugin": "The value is always None. The callback `DeepSpeed` has the configuration.",
        "distributed_state": "The object has only the distributed type, the world size, the ranks and the device.",
        "logging_nan_inf_filter": "The argument is False by default, so that the log shows NaN and infinite losses.",
        "logging_steps": "If the planned end of the run is between two logs, the last steps are also logged.",
        "parallelism_config": (
            "The value is always None, because tensor, context and sequence parallelism are not supported."
        ),
        "report_to": "Names of trackers that trainbus does not support are refused, unless a plugin adds the tracker.",
        "torch_empty_cache_steps": (
            "The cache is emptied at the end of a step. transformers empties it inside the step."
        ),
        "train_sampling_strategy": "`batch_rebalance` is refused.",
    },
    "Accelerator": {
        "even_batches": "An assignment has no effect, because all ranks get the same number of batches.",
        "parallelism_config": "The value is always None.",
        "prepare": (
            "The method returns optimizers and schedules unchanged. The Trainer wraps its own optimizer and schedule."
        ),
        "prepare_model": (
            "The method returns the Trainer's model with its wrapper. It moves any other model to the device."
        ),
        "state": "The attributes for plugins of accelerate are None.",
    },
}
"""Class -> name -> the difference."""

REFUSED = {
    "Trainer": {"compute_objective": "Pass the function to `hyperparameter_search`."},
    "Accelerator": {
        "dataloader_config": "Set `accelerator_config` in the arguments.",
        "split_between_processes": "Take `rows[accelerator.process_index :: accelerator.num_processes]`.",
    },
}
"""Class -> name -> what to do instead. Reading the name raises an AttributeError with this text."""


def rows() -> Iterator[tuple[str, str, str]]:
    """Yield name, status and remark of each name that differs or is refused."""
    for status, table in (("differs", DIFFERS), ("refused", REFUSED)):
        for kind, names in table.items():
            for name, text in names.items():
                yield f"`{kind}.{name}`", status, text
