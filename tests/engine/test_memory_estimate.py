"""The memory estimate: the figures of the papers, of torch's optimizers, and the command `trainbus plan`."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from trainbus import TrainingArguments
from trainbus.engine.commands.main import main
from trainbus.engine.distributed.memory_estimate import candidates, estimate, gpus_needed
from trainbus.engine.distributed.memory_formulas import activation_bytes
from trainbus.engine.distributed.strategies import variants
from trainbus.engine.distributed.variants import arguments_call, launch_command
from trainbus.engine.distributed.workload import STATES, Workload
from trainbus.engine.optim.build import build_optimizer
from trainbus.engine.optim.registry import OPTIMIZERS
from trainbus.events.errors import ArgumentError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "scaling.md"


def found(name: str, **options):
    """Return the memory of one variant."""
    workload = Workload(**{"params": 1e9, "gpus": 8, "precision": "fp32", **options})
    [variant] = [variant for variant in variants(workload) if variant.name == name]
    return estimate(variant, workload)


# The papers.


@pytest.mark.parametrize(
    ("billions", "gpus", "stages"),
    [
        (7.5, 4, (52.5, 41.25, 30.0)),
        (7.5, 64, (31.4, 16.6, 1.88)),
        (7.5, 1024, (30.1, 15.1, 0.12)),
        (128, 16, (608, 368, 128)),
        (1000, 64, (4187, 2218, 250)),
    ],
)
def test_the_model_states_of_zero_are_those_of_the_paper(billions, gpus, stages):
    """Table 1 of Rajbhandari et al. 2020: GB on each device, mixed precision, Adam."""
    options = {"params": billions * 1e9, "gpus": gpus, "gpus_per_node": gpus, "precision": "fp16"}
    for stage, expected in enumerate(stages, 1):
        states = found(f"DeepSpeed {stage}", **options).states_of_model * billions
        assert states == pytest.approx(expected, rel=3e-3 if expected > 1 else 0.03)


def test_the_baseline_of_the_paper_is_one_process():
    """Figure 1: 7.5 billion parameters take 120 GB."""
    workload = Workload(params=7.5e9)
    assert estimate(variants(workload)[0], workload).states_of_model * 7.5 == 120


def test_communication_volume_matches_the_paper():
    """Section 7: twice the model for data parallelism and stages 1 and 2, three times for stage 3."""
    sent = {name: found(name).sent for name in ("DDP", "DeepSpeed 1", "DeepSpeed 2", "stage 2", "stage 3")}
    assert sent == {"DDP": 2, "DeepSpeed 1": 2, "DeepSpeed 2": 2, "stage 2": 2, "stage 3": 3}


@pytest.mark.parametrize(
    ("heads", "hidden", "scores"), [(96, 12288, 80), (128, 20480, 64), (0, 12288, 0)], ids=["175B", "530B", "fused"]
)
def test_a_layer_keeps_the_activations_of_the_paper(heads, hidden, scores):
    """Korthikanti et al. 2022, section 4.1: `sbh (34 + 5 a s / h)` bytes; 80 for GPT-3, 64 for MT-NLG."""
    sizes = {"hidden": hidden, "sequence": 2048, "batch": 2, "heads": heads or None}
    one, two = (activation_bytes(Workload(params=1e9, layers=layers, **sizes)) for layers in (1, 2))
    assert two - one == 2048 * 2 * hidden * (34 + scores)


def test_recomputed_layers_keep_their_input():
    """Section 5: `2 sbh` bytes."""
    sizes = {"params": 1e9, "hidden": 64, "sequence": 16, "recompute": True}
    one, two = (activation_bytes(Workload(layers=layers, **sizes)) for layers in (1, 2))
    assert two - one == 2 * 16 * 64


# What each variant does here.


@pytest.mark.parametrize(
    ("name", "kept", "peak"),
    [
        ("DDP", 16, 20),
        ("stage 1", 4 + 4 + 8 / 8, 4 + 4 + 1),
        ("fairscale", 4 + 8 / 8, 4 + 4 + 1),
        ("stage 2", 12 / 8, 12 / 8 + 4 + 8 / 32),  # all weights, and a layer's gradients
        ("stage 3", 12 / 8, 12 / 8 + 4 / 8 + 8 / 32 + 4 / 32),  # two layers' weights, one layer's gradients
        ("stage 3 offload", 0, 8 / 32 + 8 / 32),
    ],
)
def test_each_variant_needs_the_memory_of_its_formula(name, kept, peak):
    needed = found(name)
    assert (needed.between_steps, needed.peak) == (pytest.approx(kept), pytest.approx(peak))


@pytest.mark.parametrize(
    ("name", "options", "between", "peak"),
    [
        ("DDP", {"precision": "fp32"}, 16.0, 20.0),
        ("DDP", {"level": "O2"}, 16.0, 20.07),
        ("DDP", {"level": "O2", "accumulate": 2}, 16.0, 20.07),
        ("DeepSpeed 1", {"precision": "fp32"}, 10.0, 16.13),
        ("DeepSpeed 2", {"precision": "fp32"}, 10.0, 14.13),
        ("DeepSpeed 1", {}, 8.0, 12.06),
        ("DeepSpeed 2", {}, 8.0, 12.06),
    ],
)
def test_the_estimate_is_the_measured_memory_of_two_ranks(name, options, between, peak):
    """Measured with benchmarks/sharded_memory.py. Its model has 16 equal layers."""
    sizes = {"gpus": 2, "precision": "bf16", "params": 8.4e6, "layers": 16, "reduce_bucket": 8.4e6 / 16, **options}
    needed = found(name, **sizes)
    assert (needed.between_steps, needed.peak) == (pytest.approx(between, abs=0.05), pytest.approx(peak, abs=0.15))


def test_offloaded_memory_is_host_memory():
    assert found("stage 3 offload").host == 16 / 8
    assert found("DeepSpeed 3 offload", precision="bf16").host == (2 + 4 + 4 + 8) / 8


def test_hybrid_shards_over_one_machine():
    hybrid, whole = (found(name, gpus=32) for name in ("hybrid", "stage 3"))
    assert (hybrid.weights, whole.weights) == (4 / 8, 4 / 32)
    assert hybrid.sent == 3 + 2 / 8
    assert "hybrid" not in [variant.name for variant in variants(Workload(params=1e9, gpus=8))]


def test_autocast_copies_are_freed_with_gathered_weights():
    assert found("stage 3", precision="bf16").work == 8 / 32 + 2 + 8 / 32
    assert found("stage 3 half", precision="bf16").work == 4 / 32 + 8 / 32


def test_variants_without_support_for_a_precision_are_left_out():
    names = {
        level: [variant.name for variant in variants(Workload(params=1e9, gpus=8, level=level))]
        for level in ("O1", "O2")
    }
    assert names["O2"] == ["DDP"]
    assert "fairscale" not in names["O1"]
    assert "fairscale" in [variant.name for variant in variants(Workload(params=1e9, gpus=8, precision="fp32"))]


def test_half_weights_have_masters():
    workload = Workload(params=1e9, level="O2")
    needed = estimate(variants(workload)[0], workload)
    assert (needed.weights, needed.masters, needed.gradients, needed.states) == (2, 4, 4, 8)


def test_autocast_copies_go_as_the_gradients_come():
    workload = Workload(params=1e9)
    needed = estimate(variants(workload)[0], workload)
    assert (needed.work, needed.peak) == (2, 16)
    several = replace(workload, accumulate=2)  # the gradients of the first batch are there beside the copies
    assert estimate(variants(several)[0], several).peak == 12 + 2 + 4


def test_more_of_the_same_takes_no_less():
    """Splitting over more GPUs never takes more of one, and activations only add."""
    for name in ("DDP", "stage 1", "stage 2", "stage 3", "fairscale", "DeepSpeed 2", "DeepSpeed 3"):
        peaks = [found(name, gpus=gpus, gpus_per_node=gpus).peak for gpus in (2, 4, 8, 16)]
        assert peaks == sorted(peaks, reverse=True)
        assert found(name, layers=4, hidden=512, sequence=10_000, batch=9).peak > found(name, layers=4).peak


# Against torch.


@pytest.mark.parametrize("name", ["adamw", "adamw_torch", "sgd", "adafactor", "adagrad", "rmsprop"])
def test_the_states_are_those_that_the_optimizer_makes(name):
    weight = nn.Parameter(torch.randn(256, 512))
    optimizer = build_optimizer(name, [{"params": [weight]}], lr=1e-3)
    weight.grad = torch.randn_like(weight)
    optimizer.step()
    values = [value for value in optimizer.state[weight].values() if isinstance(value, torch.Tensor)]
    size = sum(value.numel() * value.element_size() for value in values)
    assert size / weight.numel() == pytest.approx(STATES[name], abs=0.03)


def test_every_optimizer_that_can_be_built_has_its_states_here():
    rank_counts = {name for name, recipe in OPTIMIZERS.items() if recipe.projection}
    assert set(STATES) == {name for name, recipe in OPTIMIZERS.items() if not recipe.unsupported} - rank_counts


# What is recommended.


def test_the_smallest_change_that_fits_comes_first():
    """16 bytes and DDP's buffers: 20 GB for a billion parameters."""
    first = {
        memory: next(
            (each.variant.name for each in candidates(Workload(params=1e9, gpus=8, gpu_memory=memory)) if each.fits), ""
        )
        for memory in (24, 16, 9, 5, 3, 2)
    }
    assert first == {**{24: "DDP", 16: "stage 1", 9: "stage 2", 5: "stage 3", 3: "stage 3 half", 2: "stage 3 offload"}}


def test_offloaded_state_must_fit_host_memory():
    fitting = {
        memory: [
            each.variant.name for each in candidates(Workload(params=70e9, gpus=8, node_memory=memory)) if each.fits
        ]
        for memory in (2000, 1000)
    }
    assert fitting == {2000: ["stage 3 offload", "DeepSpeed 3 offload"], 1000: []}


def test_gpus_needed_finds_the_smallest_number_that_fits():
    workload = Workload(params=70e9, gpus=8, node_memory=500)
    gpus, variant = gpus_needed(workload)
    assert (gpus, variant.name) == (32, "stage 3 half")
    assert variant in [each.variant for each in candidates(replace(workload, gpus=32)) if each.fits]
    assert gpus_needed(replace(workload, layers=80, hidden=8192, sequence=100_000)) is None


def test_arguments_accept_each_variant(tmp_path):
    workload = Workload(params=1e9, gpus=16, optimizer="adafactor", accumulate=2, recompute=True)
    fp32 = replace(workload, precision="fp32")
    for variant, asked in [
        *((variant, workload) for variant in variants(workload)),
        *((variant, fp32) for variant in variants(fp32)),
    ]:
        call = ast.parse(arguments_call(variant, asked), mode="eval").body
        words = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
        args = TrainingArguments(str(tmp_path), use_cpu=True, **words)
        assert args.way_to_shard == variant.strategy
        assert (args.bf16, args.optim, args.gradient_accumulation_steps) == (asked is workload, "adafactor", 2)


@pytest.mark.parametrize(
    ("gpus", "words"),
    [(1, "python train.py"), (4, "--standalone --nproc_per_node=4"), (16, "--nnodes=2 --nproc_per_node=8")],
)
def test_launch_command_fits_the_number_of_gpus(gpus, words):
    assert words in launch_command(Workload(params=1e9, gpus=gpus))


# The command.


@pytest.mark.parametrize("word", ["7e9", "7b", "7B", "7_000_000_000", "7000m", "0.007t"])
def test_a_number_of_parameters_may_be_written_in_many_ways(word, capsys):
    assert main(["plan", "--params", word, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["training"]["params"] == 7e9


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--params=seven", "write it as 7e9, 7b or 350m"),
        ("--params=7.1.1b", "write it as 7e9, 7b or 350m"),
        ("--params=-7e9", "params is -7e+09; set it to 1 or more."),
        ("--params=1e999", "params is inf; set it to 1 or more."),
        ("--params=7b --gpus=0", "gpus is 0; set it to 1 or more."),
        ("--params=7b --gpus=-8", "gpus is -8; set it to 1 or more."),
        ("--params=7b --gpus=12", "12 GPUs are not a multiple of 8 GPUs per machine"),
        ("--params=7b --gpu-memory=much", "write its GB, such as 80"),
        ("--params=7b --gpu-memory=0", "write its GB, such as 80"),
        ("--params=7b --precision=bf61", "precision is 'bf61'; did you mean 'bf16'?"),
        ("--params=7b --optimizer=adanw", "optimizer is 'adanw'; did you mean 'adamw'?"),
        ("--params=7b --optimizer=galore_adamw", "depends on the rank of its projection"),
        ("--params=7b --opt-level=O3", "level is 'O3'"),
        ("--params=7b --hidden=64", "Activations need layers, hidden and sequence, but only hidden is set."),
        ("--gpus=8", "required: --params"),
        ("--params=7b --gpu=8", "unknown argument '--gpu'; did you mean '--gpus'?"),
    ],
)
def test_wrong_options_are_refused(words, said, capsys):
    try:
        status = main(["plan", *words.split()])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert said in capsys.readouterr().err


def test_workload_refuses_nan():
    with pytest.raises(ArgumentError, match="params is nan"):
        Workload(params=float("nan"))


def test_json_equals_the_table(capsys):
    words = shlex.split("--params 7b --gpus 8 --layers 32 --hidden 4096 --sequence 2048 --batch 4")
    main(["plan", *words])
    table = capsys.readouterr().out
    main(["plan", *words, "--json"])
    data = json.loads(capsys.readouterr().out)
    for way in data["ways"]:
        [row] = [line for line in table.splitlines() if re.match(rf"{way['name']}  ", line)]
        cells = row.removeprefix(way["name"]).split()
        assert cells[-1] == ("yes" if way["fits"] else "no")
        assert float(cells[-4]) == pytest.approx(way["gb_at_the_peak"], abs=0.05)
    assert data["fitting"] == [way["name"] for way in data["ways"] if way["fits"]]
    assert data["fitting"]
    assert f"  {data['fitting'][0]}: " in table


def test_alternatives_are_shown_if_no_strategy_fits(capsys):
    main(shlex.split("plan --params 70b --gpus 8 --node-memory 500 --layers 80 --hidden 8192 --sequence 2048"))
    said = capsys.readouterr().out
    assert "Nothing fits." in said
    assert re.search(r"With \d+ GPUs, stage 3 half would fit\.", said)
    assert "--recompute" in said
    assert "--optimizer adafactor" in said


def test_planning_needs_no_torch():
    program = "import sys; import trainbus.engine.commands.plan; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_the_page_shows_the_output_of_the_command(capsys):
    page = PAGE.read_text(encoding="utf-8")
    shown = re.findall(r"```bash\n(trainbus plan [^\n]+)\n```\n\nIt prints:\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown
    for command, text in shown:
        assert main(shlex.split(command)[1:]) == 0
        assert capsys.readouterr().out == text
