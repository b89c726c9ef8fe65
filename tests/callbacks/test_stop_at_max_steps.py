"""The planned end of a run is a callback's decision, like any other."""

from __future__ import annotations

from support.callbacks import stop_at
from support.trainers import net_trainer
from trainbus import Checkpoint, StopAtMaxSteps, every


def test_ends_the_run_and_logs_the_reason(tmp_path):
    built = net_trainer(tmp_path, max_steps=5)
    assert built.train().global_step == 5
    assert built.control.why("training_stop") == "stopped at step 5 by StopAtMaxSteps: all 5 steps are done"


def test_without_it_the_last_epoch_is_run_to_its_end(tmp_path):
    built = net_trainer(tmp_path, max_steps=5)
    built.remove_callback(StopAtMaxSteps)
    assert built.train().global_step == 8


def test_a_run_that_is_complete_has_nothing_to_resume(tmp_path):
    net_trainer(tmp_path, Checkpoint(every(6))).train()
    resumed = net_trainer(tmp_path, Checkpoint(every(6)))
    steps = []
    resumed.on("on_step_begin", lambda state: steps.append(state.global_step))
    assert resumed.train(resume_from_checkpoint=True).global_step == 6
    assert steps == []


def test_a_stopped_run_resumes_to_its_end(tmp_path):
    broken = net_trainer(tmp_path, Checkpoint(every(3)))
    broken.on("on_step_end", stop_at(3))
    assert broken.train().global_step == 3
    assert net_trainer(tmp_path, Checkpoint(every(3))).train(resume_from_checkpoint=True).global_step == 6
