"""The order in which pytest-xdist runs the files of tests: the longest first, so that no worker waits for the other."""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling

SECONDS: dict[str, int] = {
    "tests/testing_kit/test_faults.py": 142,
    "tests/testing_kit/test_good_callbacks.py": 124,
    "tests/test_every_callback.py": 100,
    "tests/engine/test_exact_resume.py": 95,
    "tests/parity/test_parity.py": 81,
    "tests/libraries/test_as_transformers.py": 77,
    "tests/engine/test_interrupted_runs.py": 71,
    "tests/engine/test_bad_input.py": 67,
    "tests/integrations/test_hf_on_two.py": 58,
    "tests/integrations/test_sharding.py": 57,
    "tests/integrations/test_wandb.py": 48,
    "tests/test_recipes.py": 48,
    "tests/parity/test_random_programs.py": 45,
    "tests/integrations/test_rank_faults.py": 42,
    "tests/test_docs.py": 42,
    "tests/test_example_plugins.py": 42,
    "tests/engine/test_positions.py": 40,
    "tests/test_own_callbacks_conform.py": 40,
    "tests/engine/test_see_the_run.py": 35,
    "tests/integrations/test_fairscale_fsdp.py": 34,
    "tests/integrations/test_deepspeed.py": 34,
    "tests/engine/test_interrupted_epochs.py": 33,
    "tests/engine/test_other_batches.py": 32,
    "tests/libraries/test_trl.py": 31,
    "tests/callbacks/test_vanished_console.py": 31,
    "tests/integrations/test_shares_of_two.py": 31,
    "tests/test_seed_programs.py": 29,
    "tests/callbacks/test_stop_on_signal.py": 24,
    "tests/test_import.py": 23,
    "tests/engine/test_new_plugin.py": 23,
    "tests/engine/test_overrides.py": 23,
    "tests/engine/test_seq2seq.py": 22,
    "tests/libraries/test_sentence_transformers.py": 22,
    "tests/engine/test_short_data.py": 22,
    "tests/engine/test_evaluation_memory.py": 21,
    "tests/integrations/test_consensus.py": 21,
    "tests/test_json.py": 21,
    "tests/engine/test_profile.py": 21,
    "tests/test_programs.py": 20,
    "tests/test_first_hour.py": 20,
    "tests/integrations/test_wandb_online.py": 19,
    "tests/integrations/test_two_processes.py": 19,
    "tests/engine/test_resume.py": 18,
    "tests/libraries/test_peft.py": 18,
    "tests/events/test_flag_parity.py": 17,
    "tests/integrations/test_lightning.py": 16,
    "tests/engine/test_columns.py": 16,
    "tests/engine/test_disk_faults.py": 16,
    "tests/test_examples.py": 15,
    "tests/engine/test_unbatched.py": 15,
    "tests/engine/test_moments.py": 15,
    "tests/libraries/test_surface.py": 15,
    "tests/typing/test_typing.py": 14,
    "tests/integrations/test_plugins_of_two.py": 13,
    "tests/engine/test_subclasses.py": 13,
    "tests/callbacks/test_signal_places.py": 12,
    "tests/callbacks/test_notebook_progress.py": 12,
    "tests/engine/test_evaluate_overrides.py": 11,
    "tests/engine/test_foreign_checkpoints.py": 11,
    "tests/parity/test_parity_scripts.py": 11,
    "tests/integrations/test_hub.py": 11,
    "tests/engine/test_failing_steps.py": 11,
    "tests/engine/test_callbacks_as_text.py": 10,
    "tests/callbacks/test_record.py": 10,
}
"""The approximate seconds of the slow files, from `pytest --durations=0`."""

SECONDS_PER_TEST = 0.02
"""The approximate seconds of a test in the other files."""


class LongestFirst(LoadFileScheduling):
    """Gives whole files to workers, as `--dist loadfile` does. The longest remaining file comes first."""

    def _assign_work_unit(self, node):
        longest = max(self.workqueue, key=lambda file: duration(file, len(self.workqueue[file])))
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)


def duration(file: str, tests: int) -> float:
    """Return about how many seconds a file of this many tests takes."""
    return SECONDS.get(file, SECONDS_PER_TEST * tests)
