"""The order in which pytest-xdist runs the files of tests: the longest first, so that no worker waits for the other."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SECONDS: dict[str, int] = {
    "tests/test_seed_programs.py": 176,
    "tests/engine/test_interrupted_epochs.py": 146,
    "tests/libraries/test_as_transformers.py": 94,
    "tests/integrations/test_hf_on_two.py": 94,
    "tests/engine/test_positions.py": 92,
    "tests/engine/test_interrupted_runs.py": 92,
    "tests/test_every_callback.py": 90,
    "tests/parity/test_random_programs.py": 90,
    "tests/test_recipes.py": 88,
    "tests/integrations/test_rank_faults.py": 75,
    "tests/engine/test_length_sampler.py": 72,
    "tests/engine/test_seq2seq.py": 70,
    "tests/integrations/test_two_processes.py": 65,
    "tests/engine/test_disk_faults.py": 65,
    "tests/engine/test_killed_run.py": 65,
    "tests/parity/test_parity.py": 60,
    "tests/engine/test_foreign_checkpoints.py": 53,
    "tests/integrations/test_fairscale_fsdp.py": 48,
    "tests/integrations/test_consensus.py": 48,
    "tests/integrations/test_shares_of_two.py": 47,
    "tests/integrations/test_sharding.py": 46,
    "tests/libraries/test_sentence_transformers.py": 44,
    "tests/callbacks/test_vanished_console.py": 42,
    "tests/integrations/test_deepspeed.py": 41,
    "tests/integrations/test_full_gradients.py": 40,
    "tests/libraries/test_trl.py": 39,
    "tests/test_import.py": 39,
    "tests/parity/test_parity_scripts.py": 39,
    "tests/integrations/test_search.py": 38,
    "tests/engine/test_optimizer_registry.py": 37,
    "tests/test_no_dead_argument.py": 35,
    "tests/engine/test_resume.py": 35,
    "tests/integrations/test_hub.py": 33,
    "tests/test_examples.py": 31,
    "tests/engine/test_async_save.py": 30,
    "tests/integrations/test_loss_module.py": 30,
    "tests/integrations/test_wandb.py": 30,
    "tests/typing/test_typing.py": 27,
    "tests/callbacks/test_memory_metrics.py": 25,
    "tests/integrations/test_layouts_of_two.py": 24,
    "tests/engine/test_short_data.py": 22,
    "tests/engine/test_nested_evaluations.py": 20,
    "tests/engine/test_moments.py": 16,
    "tests/engine/test_precision_resume.py": 15,
    "tests/engine/test_stream_collators.py": 15,
    "tests/engine/test_limits.py": 14,
    "tests/callbacks/test_schedule_free.py": 13,
    "tests/engine/test_loader_options.py": 12,
    "tests/engine/test_prepared_loaders.py": 11,
    "tests/engine/test_counts.py": 11,
    "tests/integrations/test_gather.py": 10,
    "tests/engine/test_evaluate_overrides.py": 10,
}
"""About how long files take that take long. `pytest --durations=0` tells."""

SECONDS_PER_TEST = 0.02
"""Of the other files."""


class LongestFirst(LoadFileScheduling):
    """Gives a whole file to a worker, as `--dist loadfile` does, and of the files left the longest."""

    def _assign_work_unit(self, node):
        longest = max(self.workqueue, key=lambda file: duration(file, len(self.workqueue[file])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def duration(file: str, tests: int) -> float:
    """Return about how many seconds a file of this many tests takes."""
    return SECONDS.get(file, SECONDS_PER_TEST * tests)
