"""The moving average of the weights: its formula, where it stands in for them, and where it does not."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from support.callbacks import Boom, Poison, scripted, stop_at
from support.models import Net
from support.outcomes import same_weights, saved_steps, weights
from support.trainers import net_trainer
from trainbus import EMA, Callback, Checkpoint, Evaluate, KeepBest, NaNGuard, Stage, every, never
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.events import ArgumentError


def trained_weights(built):
    """Have the weights noted as the optimizer leaves them, by step; 0 is where they begin."""
    seen = {0: weights(built.model)}
    built.on("on_optimizer_step", lambda state, model: seen.update({state.global_step + 1: weights(model)}))
    return seen


def average(seen, decay, last, every=1):
    """The average after step `last`, by the formula."""
    result = dict(seen[0])
    for step in range(1, last + 1):
        if step in seen and step % every == 0:
            result = {name: decay * value + (1 - decay) * seen[step][name] for name, value in result.items()}
    return result


def close(one, other):
    return all(torch.allclose(one[name], other[name], rtol=1e-5, atol=1e-7) for name in other)


def saved(folder, step):
    return load_file(folder / f"checkpoint-{step}" / "model.safetensors")


@pytest.mark.parametrize("options", [{"decay": 0.9}, {"decay": 0.5, "every": 2}, {"decay": 0.0}], ids=str)
def test_the_formula_over_five_steps(tmp_path, options):
    built = net_trainer(tmp_path, EMA(**options), max_steps=5)
    seen = trained_weights(built)
    built.train()
    expected = average(seen, options["decay"], 5, options.get("every", 1))
    assert close(weights(built.model), expected)
    assert options["decay"] == 0.0 or not close(weights(built.model), seen[5])


def test_evaluation_uses_the_average_and_training_the_weights(tmp_path):
    def run(*callbacks):
        built = net_trainer(tmp_path, Evaluate(every(2)), *callbacks)
        seen, evaluated = trained_weights(built), {}
        built.on("on_prediction_step", lambda state, model: evaluated.update({state.global_step: weights(model)}))
        built.train()
        return seen, evaluated

    plain, plain_evaluated = run()
    seen, evaluated = run(EMA(0.9))
    for step in (2, 4, 6):
        assert close(evaluated[step], average(seen, 0.9, step))
        assert same_weights(plain_evaluated[step], plain[step])
    assert plain.keys() == seen.keys()
    assert all(same_weights(plain[step], seen[step]) for step in plain), "the same training as without an average"


def test_the_average_and_the_weights_are_both_saved(tmp_path):
    built = net_trainer(tmp_path, EMA(0.9), Checkpoint(every(2)))
    seen = trained_weights(built)
    built.train()
    for step in (2, 4, 6):
        assert close(saved(tmp_path, step), average(seen, 0.9, step))
        kept = load_values(tmp_path / f"checkpoint-{step}" / "callbacks.safetensors")["callbacks"]["EMA"]
        assert same_weights(kept["trained"], seen[step])
        assert same_weights(kept["average"], saved(tmp_path, step))


def test_the_run_ends_with_the_average(tmp_path):
    built = net_trainer(tmp_path, EMA(0.9), Checkpoint(every(6)))
    built.train()
    assert same_weights(weights(built.model), saved(tmp_path, 6))
    assert built.evaluate()["eval_loss"] > 0
    assert same_weights(weights(built.model), saved(tmp_path, 6)), "evaluating afterwards swaps nothing"


def test_resumes_exactly(tmp_path):
    def build(folder):
        built = net_trainer(tmp_path / folder, EMA(0.9, every=2), Evaluate(every(2)), Checkpoint(every(3)))
        return built, trained_weights(built)

    unbroken, seen = build("unbroken")
    unbroken.train()
    broken, _ = build("broken")
    broken.on("on_step_end", stop_at(3))
    broken.train()
    resumed, seen_after = build("broken")
    at_begin = {}
    resumed.on("on_train_begin", lambda model: at_begin.update(weights(model)))
    resumed.train(resume_from_checkpoint=True)
    assert same_weights(at_begin, seen[3]), "the weights that are trained, although the model file has the average"
    assert set(seen_after) == {0, 4, 5, 6}
    assert all(same_weights(seen_after[step], seen[step]) for step in (4, 5, 6))
    assert same_weights(weights(resumed.model), weights(unbroken.model))


@pytest.mark.parametrize("ema_first", [True, False])
def test_the_best_average_is_loaded(tmp_path, ema_first):
    both = [EMA(0.9), KeepBest("score")]
    around = (Evaluate(every(2)), Checkpoint(never()))
    listed = both if ema_first else both[::-1]
    built = net_trainer(tmp_path, *listed, *around, compute_metrics=scripted([0.1, 0.9, 0.3]))
    seen = trained_weights(built)
    built.train()
    assert saved_steps(tmp_path) == [2, 4]
    assert same_weights(weights(built.model), saved(tmp_path, 4))
    assert close(weights(built.model), average(seen, 0.9, 4))


class Veto(Callback):
    def on_save_begin(self, control):
        control.veto("save", "the disk is full")


def test_a_checkpoint_that_is_vetoed_gives_the_weights_back(tmp_path):
    ends = []
    for callbacks in ([], [Veto()]):
        built = net_trainer(tmp_path, EMA(0.9), Checkpoint(every(2)), *callbacks)
        seen = trained_weights(built)
        built.train()
        ends.append((seen, weights(built.model)))
    (plain, end), (vetoed, vetoed_end) = ends
    assert all(same_weights(plain[step], vetoed[step]) for step in plain)
    assert same_weights(end, vetoed_end)


def test_a_skipped_update_is_not_averaged(tmp_path):
    built = net_trainer(tmp_path, EMA(0.9), NaNGuard("skip"), Poison(3))
    seen = trained_weights(built)
    built.train()
    assert 3 not in seen
    assert close(weights(built.model), average(seen, 0.9, 6))


def test_a_run_after_a_failed_one_begins_a_new_average(tmp_path):
    built = net_trainer(tmp_path, EMA(0.9), model_init=Net)

    def fail(state):
        if state.global_step == 3:
            raise Boom

    failing = built.on("on_step_end", fail)
    with pytest.raises(Boom):
        built.train()
    failing()
    seen = trained_weights(built)
    built.train()
    seen[0] = weights(Net())
    assert close(weights(built.model), average(seen, 0.9, 6))


def test_two_ema_callbacks_are_refused(tmp_path):
    with pytest.raises(
        ArgumentError, match=r"EMA\(.*does not work with EMA\(.*only one average can replace the weights"
    ):
        net_trainer(tmp_path, EMA(0.9), EMA(0.99, id="slow")).train()


@pytest.mark.parametrize("wrong", [{"decay": 1.0}, {"decay": -0.1}, {"every": 0}], ids=str)
def test_wrong_values_are_refused(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ArgumentError, match=f"EMA.{name}={value}"):
        EMA(**wrong)


def test_the_average_of_halved_weights_is_kept_in_float32(tmp_path):
    """Else its steps of a thousandth would be rounded away."""
    averages = {}
    for level in ("O1", "O2"):
        built = net_trainer(tmp_path / level, EMA(0.999), max_steps=6, bf16=True, fp16_opt_level=level)
        ema = next(each for each in built.callbacks.values() if isinstance(each, EMA))
        before = weights(built.model)
        noted = averages[level] = {}
        built.on(
            "on_train_end", lambda ema=ema, noted=noted: noted.update(ema._average), stage=Stage.PREPARE, before="EMA"
        )
        built.train()
        assert all(average.dtype == torch.float32 for average in noted.values())
        moved = {name: (noted[name] - before[name]).abs().max().item() for name in noted}
        assert max(moved.values()) > 0
    for name, average in averages["O1"].items():
        torch.testing.assert_close(average, averages["O2"][name], rtol=0, atol=4e-3)  # half a step of bfloat16 near 1
