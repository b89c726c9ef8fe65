import math

import torch
from spike_rollback import SpikeRollback, is_spike

from trainbus.testing import net_samples, parametrize_with_checks


@parametrize_with_checks([lambda: SpikeRollback(every=2), lambda: SpikeRollback(factor=1.01, every=1)])
def test_conforms(check):
    check()


def test_the_decision():
    assert is_spike(4.0, 1.0, factor=3.0)
    assert is_spike(math.nan, 1.0, factor=3.0)
    assert not is_spike(2.0, 1.0, factor=3.0)
    assert not is_spike(2.0, math.nan, factor=3.0)


def test_a_bad_batch_leaves_no_trace_in_the_weights(tiny_run):
    rows = net_samples(40)
    for row in rows[16:20]:
        row["labels"] = row["labels"] + 1000.0
    callback = SpikeRollback(every=1)
    options = {"train_dataset": rows, "max_steps": 10, "lr_scheduler_type": "constant"}
    options["train_sampling_strategy"] = "sequential"
    run = tiny_run(callback, **options)
    assert callback.rollbacks == 1
    assert run.requests("skip_update")[0][1] == "SpikeRollback"
    assert all(torch.isfinite(weight).all() for weight in run.weights.values())
    assert run.trainer.state.steps_skipped == 1
