from __future__ import annotations

import json
import logging
import pickle
import random
from itertools import product

import pytest
import torch
import transformers
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau
from transformers.optimization import GreedyLR as TheirGreedyLR
from transformers.trainer_utils import SchedulerType

from trainbus.engine.optim.greedy_lr import GreedyLR
from trainbus.engine.optim.schedules import (
    METRIC_SCHEDULES,
    NOT_NEGATIVE,
    SCHEDULES,
    accepted_kwargs,
    get_scheduler,
    needs_metric,
)
from trainbus.events.errors import ArgumentError

LENGTHS = [(0, 1), (1, 1), (0, 2), (1, 7), (0, 50), (5, 50), (49, 50), (10, 101), (70, 50), (33, 200)]

SETTINGS: dict[str, list[dict]] = {
    "linear": [{}],
    "cosine": [{}, {"num_cycles": 2}, {"num_cycles": 1.3}],
    "cosine_with_restarts": [{}, {"num_cycles": 3}, {"num_cycles": 2.5}],
    "polynomial": [{}, {"power": 2.0}, {"lr_end": 1e-6, "power": 0.7}, {"power": 3}],
    "constant": [{}],
    "constant_with_warmup": [{}],
    "inverse_sqrt": [{}, {"timescale": 17}, {"timescale": 5000}],
    "cosine_with_min_lr": [{"min_lr": 1e-6}, {"min_lr_rate": 0.1}, {"min_lr_rate": 0.3, "num_cycles": 1.7}],
    "cosine_warmup_with_min_lr": [
        {"min_lr": 1e-6},
        {"min_lr_rate": 0.1, "warmup_lr_rate": 0.2},
        {"min_lr_rate": 0.3, "num_cycles": 2},
    ],
    "warmup_stable_decay": [
        {"num_decay_steps": 0},
        {"num_decay_steps": 7},
        {"num_decay_steps": 20, "min_lr_ratio": 0.1, "num_cycles": 1.5},
        *(
            {"num_decay_steps": 11, "warmup_type": warmup, "decay_type": decay, "min_lr_ratio": 0.05}
            for warmup, decay in product(("linear", "cosine", "1-sqrt"), repeat=2)
        ),
    ],
}
CASES = [
    pytest.param(name, warmup, total, kwargs, id=f"{name}-{warmup}of{total}-{number}")
    for name, settings in SETTINGS.items()
    for (warmup, total), (number, kwargs) in product(LENGTHS, enumerate(settings))
]

PLATEAU = [{}, {"factor": 0.5, "patience": 1}, {"mode": "max", "threshold_mode": "abs", "patience": 0, "cooldown": 2}]
GREEDY = [
    {},
    {"patience": 1, "min_lr": 1e-5},
    {"patience": 0, "mode": "max", "min_lr": [1e-5, 2e-5], "max_lr": [3e-4, 1.0], "factor": 0.7},
    {"patience": 1, "min_lr": 1e-6, "smooth": True, "window_size": 4, "cooldown": 2, "warmup": 1},
    {"patience": 0, "min_lr": 1e-6, "threshold_mode": "rel", "threshold": 0.01, "reset_start": 2, "factor": 0.3},
    {"patience": 0, "mode": "max", "threshold_mode": "rel", "min_lr": 2e-5, "smooth": True, "reset_start": 1},
]
METRIC_CASES = [("reduce_lr_on_plateau", kwargs) for kwargs in PLATEAU] + [("greedy", kwargs) for kwargs in GREEDY]


def make_optimizer() -> torch.optim.Optimizer:
    groups = [
        {"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 3e-5},
        {"params": [torch.nn.Parameter(torch.zeros(1))]},
    ]
    optimizer = torch.optim.SGD(groups, lr=5e-5)
    optimizer.step()  # torch warns when a schedule steps before any update
    return optimizer


def theirs(name: str, optimizer, warmup, total, kwargs):
    return transformers.get_scheduler(name, optimizer, warmup, total, scheduler_specific_kwargs=dict(kwargs))


def rates(scheduler, steps: int) -> list[list[float]]:
    seen = []
    for _ in range(steps):
        seen.append([float(group["lr"]) for group in scheduler.optimizer.param_groups])
        scheduler.optimizer.step()
        scheduler.step()
    return seen


def rates_on(scheduler, metrics: list[float]) -> list[list[float]]:
    seen = []
    for metric in metrics:
        scheduler.step(metric)
        seen.append([group["lr"] for group in scheduler.optimizer.param_groups])
        assert seen[-1] == scheduler.get_last_lr()
    return seen


def noisy_metrics(count: int, seed: int = 0) -> list[float]:
    """Falls, rises and sits still in turns, so that every branch of a metric-driven schedule is taken."""
    draw = random.Random(seed)
    values, value = [], 1.0
    for index in range(count):
        value += (-0.02, 0.01, 0.0, -0.001)[index // 17 % 4] + draw.uniform(-0.002, 0.002)
        values.append(value)
    return values


def through_json(state: dict) -> dict:
    return json.loads(json.dumps(state))


def test_the_names_are_those_of_transformers():
    assert set(SCHEDULES) == {member.value for member in SchedulerType}
    assert set(SETTINGS) | METRIC_SCHEDULES == set(SCHEDULES)


@pytest.mark.parametrize(("name", "warmup", "total", "kwargs"), CASES)
def test_learning_rates_equal_transformers_bit_for_bit(name, warmup, total, kwargs):
    if name == "polynomial" and warmup == total:
        pytest.skip("transformers divides by zero")
    steps = int(1.2 * total) + 2
    ours = get_scheduler(name, make_optimizer(), warmup, total, **kwargs)
    assert isinstance(ours, LambdaLR)
    assert rates(ours, steps) == rates(theirs(name, make_optimizer(), warmup, total, kwargs), steps)


@pytest.mark.filterwarnings("ignore:Both num_training_steps and num_stable_steps")
def test_a_given_stable_phase_wins_over_the_length_of_the_run():
    kwargs = {"num_decay_steps": 5, "num_stable_steps": 9, "min_lr_ratio": 0.2}
    ours = rates(get_scheduler("warmup_stable_decay", make_optimizer(), 3, 50, **kwargs), 60)
    assert ours == rates(theirs("warmup_stable_decay", make_optimizer(), 3, 50, kwargs), 60)
    assert ours == rates(get_scheduler("warmup_stable_decay", make_optimizer(), 3, None, **kwargs), 60)


@pytest.mark.parametrize(("name", "kwargs"), METRIC_CASES)
def test_metric_driven_rates_equal_transformers_bit_for_bit(name, kwargs):
    for seed in range(4):
        metrics = noisy_metrics(300, seed)
        ours = get_scheduler(name, make_optimizer(), 3, 50, **kwargs)
        yours = theirs(name, make_optimizer(), 3, 50, kwargs)
        expected = rates_on(yours, metrics)
        assert rates_on(ours, metrics) == expected
        assert ours.state_dict() == yours.state_dict()
    if kwargs:
        assert len({tuple(pair) for pair in expected}) > 2, "the metrics should have moved the rates"


def test_a_warmup_as_long_as_the_run_ends_at_lr_end():
    assert (
        rates(get_scheduler("polynomial", make_optimizer(), 4, 4), 6)[4:]
        == [[lr * (1e-7 / 5e-5) for lr in (3e-5, 5e-5)]] * 2
    )


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("source", [get_scheduler, None], ids=["ours", "transformers"])
def test_state_is_plain_data_and_resumes(name, source):
    kwargs = SETTINGS[name][-1]
    whole = rates(get_scheduler(name, make_optimizer(), 5, 40, **kwargs), 48)

    first = (
        get_scheduler(name, make_optimizer(), 5, 40, **kwargs)
        if source
        else theirs(name, make_optimizer(), 5, 40, kwargs)
    )
    assert rates(first, 20) == whole[:20]
    saved_optimizer, saved = first.optimizer.state_dict(), through_json(first.state_dict())
    if source:
        assert saved == first.state_dict()
        assert saved["lr_lambdas"] == [{}, {}]

    second = get_scheduler(name, make_optimizer(), 5, 40, **kwargs)
    second.optimizer.load_state_dict(saved_optimizer)
    second.load_state_dict(saved)
    assert rates(second, 28) == whole[20:]


@pytest.mark.parametrize(("name", "kwargs"), METRIC_CASES)
@pytest.mark.parametrize("save_with", ["ours", "transformers"])
@pytest.mark.parametrize("load_with", ["ours", "transformers"])
def test_metric_driven_state_resumes_in_either(name, kwargs, save_with, load_with):
    def make(source):
        return (
            get_scheduler(name, make_optimizer(), **kwargs)
            if source == "ours"
            else theirs(name, make_optimizer(), None, None, kwargs)
        )

    metrics = noisy_metrics(200)
    whole = rates_on(make("ours"), metrics)
    first = make(save_with)
    assert rates_on(first, metrics[:73]) == whole[:73]
    saved_optimizer, saved = first.optimizer.state_dict(), through_json(first.state_dict())
    rates_on(first, metrics[73:])

    second = make(load_with)
    second.optimizer.load_state_dict(saved_optimizer)
    second.load_state_dict(saved)
    assert rates_on(second, metrics[73:]) == whole[73:]


def test_a_saved_greedy_state_does_not_change_with_the_run():
    scheduler = get_scheduler("greedy", make_optimizer(), patience=0, smooth=True, min_lr=1e-6)
    rates_on(scheduler, [3.0, 2.0])
    saved = scheduler.state_dict()
    before = through_json(saved)
    rates_on(scheduler, [1.0, 5.0, 5.0])
    assert saved == before


@pytest.mark.parametrize("name", SETTINGS)
def test_factors_pickle(name):
    factor = get_scheduler(name, make_optimizer(), 2, 10, **SETTINGS[name][0]).lr_lambdas[0]
    assert pickle.loads(pickle.dumps(factor))(3) == factor(3)


def test_needs_metric_finds_schedules_that_step_with_a_metric():
    optimizer = make_optimizer()
    for name in SCHEDULES:
        scheduler = get_scheduler(name, make_optimizer(), 1, 10, **SETTINGS.get(name, [{}])[0])
        assert needs_metric(scheduler) is (name in METRIC_SCHEDULES)
    assert {"reduce_lr_on_plateau", "greedy"} == METRIC_SCHEDULES
    assert needs_metric(TheirGreedyLR(optimizer))
    assert needs_metric(ReduceLROnPlateau(optimizer))
    assert not needs_metric(torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, 10))
    assert not needs_metric(None)


def test_an_enum_names_a_schedule():
    assert isinstance(get_scheduler(SchedulerType.GREEDY, make_optimizer()), GreedyLR)


def test_last_epoch_continues_a_schedule():
    optimizer = make_optimizer()
    expected = rates(get_scheduler("linear", optimizer, 2, 10), 10)
    assert rates(get_scheduler("linear", optimizer, 2, 10, last_epoch=3), 6) == expected[4:]


def test_an_unknown_name_lists_the_known_and_the_nearest():
    with pytest.raises(ArgumentError, match=r"'cosin' is unknown; did you mean 'cosine'\?") as caught:
        get_scheduler("cosin", make_optimizer(), 0, 1)
    for name in SCHEDULES:
        assert name in str(caught.value)


@pytest.mark.parametrize("name", SCHEDULES)
def test_unknown_option_raises_with_the_known_options(name):
    with pytest.raises(ArgumentError, match=f"{name!r} has no option 'num_cycle'") as caught:
        get_scheduler(name, make_optimizer(), 0, 1, num_cycle=1)
    for setting in accepted_kwargs(name):
        assert setting in str(caught.value)


def test_options_of_get_scheduler_are_not_user_options():
    assert accepted_kwargs("polynomial") == ("lr_end", "power", "last_epoch")
    assert "optimizer" not in accepted_kwargs("greedy")
    with pytest.raises(ArgumentError, match="no option 'lr_init'"):
        get_scheduler("polynomial", make_optimizer(), 0, 1, lr_init=1.0)


@pytest.mark.parametrize(
    ("name", "steps", "kwargs", "message"),
    [
        ("linear", (None, 10), {}, "needs num_warmup_steps"),
        ("linear", (1, None), {}, "needs num_training_steps"),
        ("warmup_stable_decay", (1, 10), {}, "needs num_decay_steps. Set it in lr_scheduler_kwargs"),
        ("warmup_stable_decay", (1, None), {"num_decay_steps": 1}, "num_training_steps or num_stable_steps"),
        ("warmup_stable_decay", (1, 9), {"num_decay_steps": 1, "decay_type": "sqrt"}, "decay_type='sqrt'"),
        ("warmup_stable_decay", (1, 9), {"num_decay_steps": 1, "warmup_type": "x"}, "warmup_type='x'"),
        ("polynomial", (1, 10), {"lr_end": 0.1}, "lr_end=0.1 is not below the learning rate 5e-05"),
        ("inverse_sqrt", (1, 10), {"timescale": 0}, "timescale=0 is not positive"),
        ("cosine_with_min_lr", (1, 10), {}, "got neither"),
        ("cosine_with_min_lr", (1, 10), {"min_lr": 1e-6, "min_lr_rate": 0.1}, "got both"),
        ("cosine_warmup_with_min_lr", (1, 10), {}, "got neither"),
        ("greedy", (), {"factor": 1.0}, "factor=1.0 is not above 0 and below 1"),
        ("greedy", (), {"mode": "up"}, "mode='up'"),
        ("greedy", (), {"threshold_mode": "x"}, "threshold_mode='x'"),
        ("greedy", (), {"min_lr": [0.1]}, "min_lr has 1 values for 2 parameter groups"),
    ],
)
def test_invalid_options_raise_when_the_schedule_is_built(name, steps, kwargs, message):
    with pytest.raises(ArgumentError, match=message):
        get_scheduler(name, make_optimizer(), *steps, **kwargs)


@pytest.mark.parametrize(
    "options",
    [
        *({"factor": value} for value in (0, 0.0, -0.5, 1.0, float("nan"))),
        *({name: -1} for name in ("patience", "threshold", "cooldown", "warmup", "eps", "min_lr", "max_lr")),
        *({"window_size": value} for value in (0, -1)),
        {"min_lr": [-1e-3, 1e-3]},
    ],
    ids=str,
)
def test_greedy_refuses_numbers_outside_of_their_ranges(options):
    [name] = options
    with pytest.raises(ArgumentError, match=f"greedy: {name}="):
        GreedyLR(make_optimizer(), **options)


REQUIRED = {
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 2},
}


@pytest.mark.parametrize(
    ("name", "option"),
    [(name, option) for name in SCHEDULES for option in accepted_kwargs(name) if option in NOT_NEGATIVE],
)
@pytest.mark.parametrize("value", [-1, float("nan"), "1"])
def test_no_schedule_takes_a_negative_number(name, option, value):
    options = {option: value} if option == "min_lr" else {**REQUIRED.get(name, {}), option: value}
    with pytest.raises(ArgumentError, match=rf"\b{option}="):
        get_scheduler(name, make_optimizer(), 2, 10, **options)


def test_greedy_warns_when_its_floor_is_above_every_rate(caplog):
    with caplog.at_level(logging.WARNING):
        get_scheduler("greedy", make_optimizer(), min_lr=1e-6)
        assert not caplog.records
        get_scheduler("greedy", make_optimizer())
    assert "below min_lr" in caplog.text


def test_greedy_prints_its_changes_with_verbose(capsys):
    rates_on(get_scheduler("greedy", make_optimizer(), patience=0, min_lr=1e-6, verbose=True), [1.0, 2.0])
    assert "learning rate of group 0" in capsys.readouterr().out


def test_greedy_raises_without_an_optimizer():
    with pytest.raises(TypeError, match="list is not an Optimizer"):
        GreedyLR([])
