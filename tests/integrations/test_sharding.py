"""Splitting optimizer states, gradients and weights over two processes, in every spelling, against DDP."""

import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from support.outcomes import same_weights
from support.processes import HUGGING_FACE, run_on_two
from support.sharding import IN_OTHER_WORDS, WAYS, Net, Words, build, data, farthest, language_model
from trainbus import FSDP, ShardedOptimizer, TrainingArguments
from trainbus.callbacks.compose import compose
from trainbus.engine.checkpoint.format.codec import load_values
from trainbus.engine.commands.main import main
from trainbus.engine.distributed.ranks import Ranks
from trainbus.events.errors import ArgumentError, CheckpointError, MissingExtra, RankFailure
from trainbus.integrations import load

PROGRAM = Path(__file__).with_name("sharding_program.py")
SPLIT = [name for name in WAYS if name != "ddp"]
RESUMED = ["ddp", "simple", "stage1", "stage2", "stage3", "stage3-offload", "zero_dp_3-offload"]
WHOLE = ["simple", "stage1"]
"""The ways that keep weights and gradients whole."""

two_processes = [pytest.mark.world_size(2), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """All runs of the program, and what it resumes: a run of one process, and one of transformers."""
    import transformers

    top = tmp_path_factory.mktemp("runs")
    build(top / "alone").train()
    arguments = {"max_steps": 4, "save_steps": 4, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    quiet = {"report_to": "none", "use_cpu": True, "disable_tqdm": True}
    theirs = transformers.TrainingArguments(str(top / "theirs"), weight_decay=0.01, **arguments, **quiet)
    transformers.Trainer(language_model(), theirs, train_dataset=Words()).train()
    run_on_two(PROGRAM, top, timeout=280, imported=HUGGING_FACE)
    return top


@pytest.fixture(scope="module")
def end(runs):
    """What a run ended with, by its name."""
    return lambda name: torch.load(runs / name / "end.pt")


@pytest.fixture(scope="module")
def weights(runs):
    """The weights that a run ended with, by its name."""
    return lambda name: load_file(runs / name / "final" / "model.safetensors")


class TestTwoProcesses:
    pytestmark = two_processes

    @pytest.mark.parametrize(
        ("way", "suffix"), [*((way, "") for way in SPLIT), *((way, "-2") for way in SPLIT if way not in IN_OTHER_WORDS)]
    )
    def test_every_way_ends_with_the_weights_of_ddp(self, end, weights, way, suffix):
        mine, theirs = weights(way + suffix), weights("ddp" + suffix)
        assert same_weights(mine, theirs)
        assert end(way + suffix)["norms"] == end("ddp" + suffix)["norms"]
        assert max(end("ddp")["norms"]) > 0.5  # clipping is at work

    def test_safetensors_metadata_and_layout_do_not_change_the_weights(self, end, weights):
        assert end("notes-fsdp")["noted"] == end("notes-ddp")["noted"] == ["end.weight"]
        assert farthest(weights("notes-fsdp"), weights("notes-ddp")) <= 2e-5  # products add up in the order of layout

    def test_a_norm_added_up_from_parts_is_near(self, end, weights):
        assert 0 < farthest(weights("inexact"), weights("ddp")) <= 2e-5
        assert end("inexact")["norms"] == pytest.approx(end("ddp")["norms"], rel=1e-6)

    @pytest.mark.parametrize("way", SPLIT)
    def test_every_way_holds_less_than_ddp(self, end, way):
        (mine,), (theirs,) = end(way)["memory"], end("ddp")["memory"]
        assert mine < theirs * (0.9 if way in WHOLE else 0.6)

    @pytest.mark.parametrize("way", SPLIT)
    def test_each_row_is_evaluated_once_and_in_order(self, end, way):
        assert end(way)["labels"] == [data().labels] * 2
        assert end(way)["eval_losses"] == pytest.approx(end("ddp")["eval_losses"], rel=1e-5)

    @pytest.mark.parametrize("way", RESUMED)
    def test_a_resumed_run_ends_like_an_unbroken_one(self, end, weights, way):
        assert same_weights(weights(f"{way}-resumed"), weights(way))
        assert end(f"{way}-resumed")["losses"] == end(way)["losses"]

    @pytest.mark.parametrize("runs_on", ["ddp-to-stage3", "stage3-to-ddp", "stage3-to-stage1", "simple-to-stage2"])
    def test_one_way_to_shard_resumes_a_checkpoint_of_another(self, weights, runs_on):
        assert farthest(weights(runs_on), weights("ddp")) <= 2e-5

    @pytest.mark.parametrize("way", ["stage1", "stage3"])
    def test_two_ranks_resume_a_checkpoint_of_one_process(self, runs, end, weights, way):
        checkpoint = runs / "alone" / "checkpoint-8"
        assert same_weights(weights(f"alone-to-{way}"), load_file(checkpoint / "model.safetensors"))
        assert _same_state(
            end(f"alone-to-{way}")["optimizer"], load_values(checkpoint / "optimizer.safetensors")["state"]
        )

    @pytest.mark.parametrize("way", ["stage1", "stage3"])
    def test_one_process_resumes_a_checkpoint_of_two_ranks(self, runs, end, weights, way, tmp_path):
        trainer = build(tmp_path)
        trainer.train(resume_from_checkpoint=str(runs / way / "checkpoint-8"))
        assert same_weights(trainer.model.state_dict(), weights(way))
        assert _same_state(trainer.optimizer.state_dict()["state"], end(way)["optimizer"])

    @pytest.mark.parametrize("way", SPLIT)
    def test_the_model_is_saved_whole_in_one_file(self, runs, way):
        saved = load_file(runs / way / "checkpoint-8" / "model.safetensors")
        Net().load_state_dict(saved, strict=True)

    def test_each_process_writes_its_part_of_the_optimizer(self, runs, end):
        folder = runs / "stage3" / "checkpoint-8"
        files = sorted(folder.glob("optimizer-*.safetensors"))
        assert [file.name for file in files] == [f"optimizer-0000{rank}-of-00002.safetensors" for rank in (0, 1)]
        sizes = [sum(tensor.numel() for tensor in load_file(file).values()) for file in files]
        state = end("stage3")["optimizer"].values()
        assert sum(sizes) == sum(part[name].numel() for part in state for name in ("exp_avg", "exp_avg_sq"))
        assert min(sizes) > 0.9 * max(sizes)
        with safe_open(folder / "optimizer.safetensors", "pt") as file:
            assert all(file.get_slice(key).get_shape() == [] for key in file.keys())  # noqa: SIM118 - it is not a dict

    def test_the_optimizer_is_written_whole_on_request(self, runs):
        assert [path.name for path in (runs / "many" / "checkpoint-4").glob("optimizer*")] == ["optimizer.safetensors"]

    def test_a_missing_part_is_found(self, runs, tmp_path, capsys):
        folder = shutil.copytree(runs / "stage3" / "checkpoint-8", tmp_path / "checkpoint-8")
        assert main(["checkpoints", "verify", str(tmp_path)]) == 0
        (folder / "optimizer-00001-of-00002.safetensors").unlink()
        assert main(["checkpoints", "verify", str(tmp_path)]) == 1
        assert "optimizer-00001-of-00002.safetensors is missing" in capsys.readouterr().out
        with pytest.raises(CheckpointError, match="one of these files is missing"):
            load_values(folder / "optimizer.safetensors")

    def test_an_incomplete_optimizer_state_is_missing_and_may_restart(self, runs, tmp_path, caplog):
        folder = shutil.copytree(runs / "stage3" / "checkpoint-4", tmp_path / "checkpoint-4")
        (folder / "optimizer-00001-of-00002.safetensors").unlink()
        with pytest.raises(CheckpointError, match=r"optimizer-00001-of-00002\.safetensors is missing.*`resume_partial"):
            build(tmp_path).train(resume_from_checkpoint=str(folder))
        trainer = build(tmp_path, resume_partial=True, max_steps=5)
        trainer.train(resume_from_checkpoint=str(folder))
        assert caplog.text.count("these start fresh: the optimizer.") == 1
        assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {1}

    def test_a_missing_part_is_not_read(self, runs, tmp_path):
        folder = shutil.copytree(runs / "stage3" / "checkpoint-8", tmp_path / "checkpoint-8")
        before = load_values(folder / "optimizer.safetensors")["state"]
        shutil.copy(folder / "optimizer-00001-of-00002.safetensors", folder / "optimizer-00002-of-00003.safetensors")
        (folder / "optimizer-00003-of-00004.safetensors").write_text("noise")
        assert _same_state(load_values(folder / "optimizer.safetensors")["state"], before)

    def test_own_checkpoints_without_a_manifest_are_not_loaded(self, runs, tmp_path):
        folder = shutil.copytree(runs / "stage3" / "checkpoint-8", tmp_path / "checkpoint-8")
        for name in ("manifest.json", "rng_state_1.safetensors", "callbacks.safetensors"):
            (folder / name).unlink()
            with pytest.raises(CheckpointError, match=r"manifest\.json is missing, but \S+ exists"):
                build(tmp_path).train(resume_from_checkpoint=str(folder))

    @pytest.mark.parametrize("way", ["simple", "stage1", "stage3"])
    def test_machines_that_share_no_disk_have_all_of_it_each(self, runs, way):
        for rank in (0, 1):
            unbroken, resumed = (runs / f"{way}-apart-{rank}{end}" / "checkpoint-8" for end in ("", "-resumed"))
            assert [path.name for path in unbroken.glob("*-of-*")] == []
            assert len(load_values(unbroken / "optimizer.safetensors")["state"]) == len([*Net().parameters()])
            assert same_weights(*(load_file(folder / "model.safetensors") for folder in (unbroken, resumed)))

    @pytest.mark.parametrize("way", ["simple", "stage1", "stage3"])
    def test_the_gradients_of_a_part_of_the_weights_are_clipped(self, end, weights, way):
        assert end(f"{way}-part")["memory"] == pytest.approx(end("ddp-part")["memory"], rel=1e-4)
        assert farthest(weights(f"{way}-part"), weights("ddp-part")) <= 2e-5

    def test_an_export_holds_only_the_model(self, runs, tmp_path):
        assert main(["checkpoints", "export", str(runs / "stage3" / "checkpoint-8"), str(tmp_path / "out")]) == 0
        assert [path.name for path in (tmp_path / "out").iterdir()] == ["model.safetensors"]

    def test_an_average_the_best_model_and_recomputation_go_with_split_weights(self, end, weights):
        assert farthest(weights("many"), weights("many-ddp")) <= 2e-5
        for name in ("again", "eval_losses"):
            assert end("many")[name] == pytest.approx(end("many-ddp")[name], rel=1e-5)
        assert torch.allclose(end("many")["predicted"], end("many-ddp")["predicted"], atol=1e-5)
        assert end("many")["again"] == pytest.approx(min(end("many")["eval_losses"]), rel=1e-6)

    def test_a_split_model_is_trained_on(self, end, weights):
        assert farthest(weights("many-twice"), weights("many-ddp-twice")) <= 2e-5
        assert end("many-twice")["losses"] == pytest.approx(end("many-ddp-twice")["losses"], rel=1e-4)

    def test_a_run_with_an_average_resumes_exactly(self, end, weights):
        # The second training wrote its checkpoints over those of the first.
        assert same_weights(weights("many-resumed"), weights("many-twice"))
        assert end("many-resumed")["losses"] == end("many-twice")["losses"]

    def test_frozen_blocks_are_thawed(self, weights):
        assert farthest(weights("fsdp-thawed"), weights("ddp-thawed")) < 1e-3
        assert farthest(weights("ddp-thawed"), weights("ddp")) > 1e-2

    def test_a_model_of_transformers_is_split_by_its_own_blocks(self, runs, weights):
        assert farthest(weights("words-fsdp"), weights("words-ddp")) <= 2e-5
        loaded = type(language_model()).from_pretrained(runs / "words-fsdp" / "final")
        assert loaded.lm_head.weight is loaded.transformer.wte.weight
        assert '"GPT2LMHeadModel"' in (runs / "words-fsdp" / "final" / "config.json").read_text()

    def test_a_split_model_generates(self, end):
        assert torch.equal(end("words-fsdp")["said"], end("words-ddp")["said"])

    def test_half_precision_is_in_between_only(self, end, weights):
        assert {weight.dtype for weight in weights("half").values()} == {torch.float32, torch.int64}
        assert {part["exp_avg"].dtype for part in end("half")["optimizer"].values()} == {torch.float32}
        assert 1e-6 < farthest(weights("half"), weights("fsdp")) < 0.1

    def test_a_checkpoint_of_transformers_is_resumed_by_parts(self, runs, end, weights):
        theirs = runs / "theirs" / "checkpoint-4"
        assert same_weights(weights("words-resumed"), load_file(theirs / "model.safetensors"))
        assert _same_state(end("words-resumed")["optimizer"], torch.load(theirs / "optimizer.pt")["state"])

    def test_a_model_without_values_is_given_some(self, weights):
        made = weights("made")
        assert all(torch.isfinite(weight).all() for weight in made.values())
        wide = made["blocks.0.body.1.weight"]
        assert not torch.equal(wide[:33], wide[33:]), "both processes drew the same"

    def test_a_model_without_values_is_loaded_from_a_checkpoint(self, weights):
        assert same_weights(weights("filled"), weights("fsdp"))

    def test_a_model_with_values_on_the_first_process_only_is_sent(self, weights):
        assert same_weights(weights("sent"), weights("fsdp"))

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("simple optimizer", "`optimizers` has a SGD, but ShardedDDP builds one on each rank"),
            ("stage1 optimizer", "`optimizer_cls_and_kwargs="),
            ("fsdp optimizer", "`optimizers` has an optimizer of the whole weights"),
            ("half", "`bf16_full_eval`"),
            ("batch size", "`auto_find_batch_size`"),
            ("degree", "FSDP(degree=3) does not divide the world size 2"),
            ("stage1 degree", "ShardedOptimizer(degree=3) does not divide the world size 2"),
            ("scaler", "set `fp16=True`"),
            ("class", "did you mean 'Block'?"),
            ("empty", "Set `fsdp=True`, which materialises one shard per rank"),
            ("never filled", "these tensors have no values: weight"),
            ("number", "scale has no dimension along which FSDP can shard it"),
            ("types", "torch.float32 (weight) and torch.float64 (scale): convert the model"),
            ("hook", "weight has a gradient hook"),
            ("too few", "leave `sharded_ddp` out"),
        ],
    )
    def test_invalid_combinations_are_refused(self, runs, what, said):
        assert said in torch.load(runs / "errors.pt")[what]


def _same_state(one, other):
    return one.keys() == other.keys() and all(same_weights(one[number], other[number]) for number in one)


# How it is spelt.


@pytest.fixture
def several(monkeypatch):
    """Be one of four processes, on two machines."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)


def built(**options):
    """Return what the arguments build that splits."""
    found = compose(TrainingArguments(use_cpu=True, **options), [])
    return [callback for callback in found if type(callback).__name__ in ("DDP", "FSDP", "ShardedOptimizer")]


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize(
    ("given", "fields"),
    [
        ({"sharding": "stage2"}, {"reshard_after_forward": False}),
        ({"sharding": "stage3 offload"}, {"offload": True}),
        ({"sharding": "stage3", "sharding_degree": 2}, {"degree": 2}),
        ({"sharding": "stage3", "sharding_degree": 4}, {}),
        ({"sharded_ddp": "zero_dp_2 offload"}, {"reshard_after_forward": False, "offload": True}),
        ({"sharded_ddp": ["zero_dp_3", "auto_wrap"]}, {}),
        ({"fsdp": True}, {}),
        ({"fsdp": ""}, None),
        ({"fsdp": "shard_grad_op offload"}, {"reshard_after_forward": False, "offload": True}),
        ({"fsdp": ["full_shard", "auto_wrap"]}, {}),
        ({"fsdp": "hybrid_shard"}, {"degree": 2}),
        ({"fsdp": "hybrid_shard_zero2"}, {"degree": 2, "reshard_after_forward": False}),
        ({"fsdp": True, "fsdp_config": {"fsdp_transformer_layer_cls_to_wrap": "A,B"}}, {"wrap": ("A", "B")}),
        ({"fsdp": True, "fsdp_config": {"min_num_params": 2000}}, {"wrap": 2000}),
        ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "NO_WRAP"}}, {"wrap": ()}),
        ({"fsdp": True, "fsdp_config": {"reshard_after_forward": "false"}}, {"reshard_after_forward": False}),
        ({"fsdp": True, "fsdp_config": {"sharding_strategy": "SHARD_GRAD_OP"}}, {"reshard_after_forward": False}),
        ({"fsdp": True, "fsdp_config": {"offload_params": True, "version": 2}}, {"offload": True}),
        ({"fsdp": True, "fsdp_config": {"mixed_precision": "bf16"}}, {"mixed_precision": "bf16"}),
        ({"fsdp": True, "fsdp_config": {"activation_checkpointing": True}}, {"activation_checkpointing": True}),
        ({"fsdp": True, "fsdp_config": {"state_dict_type": "FULL_STATE_DICT"}}, {"whole_optimizer": True}),
        ({"fsdp": True, "fsdp_config": {"state_dict_type": "SHARDED_STATE_DICT", "xla": False}}, {}),
        ({"fsdp": True, "fsdp_config": {"sync_module_states": "true", "cpu_ram_efficient_loading": True}}, {}),
    ],
    ids=str,
)
def test_sharding_arguments_set_the_fields_of_the_callback(given, fields):
    found = built(**given)
    if fields is None:
        assert [type(callback).__name__ for callback in found] == ["DDP"]
    else:
        assert found == [FSDP(**fields)]


@pytest.mark.usefixtures("several")
def test_stage_1_works_with_ddp():
    found = built(sharding="stage1", sharding_degree=2)
    assert [type(callback).__name__ for callback in found] == ["DDP", "ShardedOptimizer"]
    assert found[1] == ShardedOptimizer(degree=2)


@pytest.mark.usefixtures("several")
@pytest.mark.parametrize("sharding", ["stage1", "stage3"])
def test_one_process_holds_all_shards_and_warns(sharding, caplog):
    assert [type(callback).__name__ for callback in built(sharding=sharding, sharding_degree=1)] == ["DDP"]
    assert "`sharding_degree=1` shards nothing" in caplog.text


@pytest.mark.usefixtures("several")
def test_keys_of_fsdp1_are_warned_of_as_without_effect(caplog):
    built(fsdp=True, fsdp_config={"use_orig_params": True, "backward_prefetch": "BACKWARD_PRE"})
    assert "use_orig_params, backward_prefetch has no effect" in caplog.text


def test_a_file_is_as_good_as_a_dict(tmp_path):
    path = tmp_path / "fsdp.json"
    path.write_text('{"fsdp_min_num_params": 7}')
    assert TrainingArguments(fsdp=True, fsdp_config=str(path)).fsdp_options.wrap == 7


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"sharded_ddp": "offload"}, "can't work on its own. Add zero_dp_2 or zero_dp_3"),
        ({"sharded_ddp": "simple offload"}, "`--sharded_ddp simple` is not compatible with any other option"),
        (
            {"sharded_ddp": "zero_dp_2 zero_dp_3"},
            "`--sharded_ddp zero_dp_2` is not compatible with `--sharded_ddp zero_dp_3`",
        ),
        ({"sharded_ddp": "zero_dp3"}, "did you mean 'zero_dp_3'?"),
        ({"sharded_ddp": "simple", "bf16": True}, "does not work with `bf16`; use `sharding='stage1'`"),
        ({"sharded_ddp": "simple", "sharding_degree": 2}, "shards over all ranks"),
        ({"sharded_ddp": "simple", "deepspeed": {"a": 1}}, "select different sharding strategies"),
        ({"sharded_ddp": "zero_dp_2", "fsdp": True}, "select different sharding strategies"),
        ({"sharding_degree": 2}, "it applies to `sharding` and `fsdp` only"),
        ({"fsdp": "offload"}, "as in 'full_shard offload'"),
        ({"fsdp": "full_shard shard_grad_op"}, "set only one of 'full_shard' and 'shard_grad_op'"),
        ({"fsdp": "full_shrad"}, "did you mean 'full_shard'?"),
        ({"fsdp": "no_shard"}, "remove `fsdp` to train with DDP"),
        ({"fsdp": True, "fsdp_config": {"reshard_after_foward": True}}, "did you mean 'reshard_after_forward'?"),
        ({"fsdp": True, "fsdp_config": {"version": 1}}, "`fully_shard` is version 2. Remove the key."),
        ({"fsdp": True, "fsdp_config": {"xla": True}}, "XLA is not supported"),
        ({"fsdp": True, "fsdp_config": {"cpu_offload": "yes"}}, "set it to true or false"),
        ({"fsdp": True, "fsdp_config": {"min_num_params": -1}}, "set it to a number of weights"),
        ({"fsdp": True, "fsdp_config": {"sync_module_states": False}}, "the weights of rank 0"),
        ({"fsdp": True, "fsdp_config": {"state_dict_type": "LOCAL_STATE_DICT"}}, "SHARDED_STATE_DICT"),
        ({"fsdp": True, "fsdp_config": {"mixed_precision": "bf32"}}, "Known: bf16, fp16, no."),
        ({"fsdp": True, "fsdp_config": {"auto_wrap_policy": "SIZE_BASED_WRAP"}}, "no 'min_num_params'"),
        (
            {"fsdp": True, "fsdp_config": {"min_num_params": 1, "transformer_layer_cls_to_wrap": "A"}},
            "two ways to select the units that are gathered",
        ),
    ],
    ids=str,
)
def test_invalid_settings_are_refused(given, said):
    with pytest.raises(ArgumentError) as error:
        TrainingArguments(use_cpu=True, **given)
    assert said in str(error.value)


@pytest.mark.parametrize("given", [*WAYS.values()][1:], ids=str)
def test_a_single_process_shards_no_state(given, tmp_path):
    with pytest.raises(ArgumentError, match="single process: start N of 2 or more ranks with `torchrun --standalone"):
        build(tmp_path, **given)


def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("fairscale.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "fairscale", None)
    monkeypatch.delitem(sys.modules, "trainbus.integrations.fairscale.sharded_ddp", raising=False)
    with pytest.raises(MissingExtra, match=r"needs fairscale: pip install 'trainbus\[sharded\]'"):
        load("sharded_ddp")


@pytest.mark.parametrize("kind", [FSDP, ShardedOptimizer])
def test_a_degree_of_one_is_no_degree(kind):
    with pytest.raises(ArgumentError, match="set it to 2 or more ranks"):
        kind(degree=1)


def test_a_save_on_one_rank_is_an_error_with_a_remedy(tmp_path):
    trainer = build(tmp_path)

    def gather(model):
        raise RuntimeError("[pair.cc:553] Connection closed by peer")

    trainer.run.seams.model_state = gather
    trainer.run.ranks = Ranks(0, 2)
    with pytest.raises(RankFailure, match="Call it on every rank, without an `if is_world_process_zero"):
        trainer.save_model(str(tmp_path / "model"))
