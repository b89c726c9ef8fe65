"""Trainings on two ranks that shard their state. torchrun starts them, and each saves its results."""

import atexit
import os
import sys

# Imported later, some of these would find the process group as a default of their functions, and hold it.
import torch
import torch.distributed.optim
from ddp_program import no_thread_of_gloo_is_left
from torch import nn

import trainbus.callbacks.parallel.fully_shard
import trainbus.integrations.fairscale.sharded_ddp  # noqa: F401
from support.sharding import IN_OTHER_WORDS, ON_CPU, WAYS, Net, build, data
from trainbus import EMA, FSDP, Freeze, TrainbusError, at
from trainbus.engine.checkpoint.format.sharded import is_split


def storages(*values):
    """Return the bytes of all tensors in nested values, this process's part of split ones, each storage once."""
    found = {}

    def look(value):
        if isinstance(value, torch.Tensor):
            local = value.to_local() if is_split(value) else value
            found[local.untyped_storage().data_ptr()] = local.untyped_storage().nbytes()
        elif isinstance(value, dict):
            look([*value.values()])
        elif isinstance(value, (list, tuple)):
            for inner in value:
                look(inner)

    look([*values])
    return sum(found.values())


def held(run):
    """Return the bytes that a process holds when a step is made: weights, gradients, optimizer states, buckets."""
    weights = [*run.model.parameters()]
    inner = getattr(run.optimizer, "optim", run.optimizer)
    buckets = [bucket.buffer for bucket in getattr(run.model_wrapped, "_bucket_list", [])]
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    return storages(weights, gradients, dict(run.optimizer.state), dict(inner.state), buckets)


def whole(value):
    """Return nested values with split tensors gathered."""
    if isinstance(value, dict):
        return {key: whole(inner) for key, inner in value.items()}
    return value.full_tensor() if is_split(value) else value


def optimizer_state(trainer):
    """Return the state of a trainer's optimizer, whole; called on every process."""
    optimizer = trainer.optimizer
    if hasattr(optimizer, "consolidate_state_dict"):
        optimizer.consolidate_state_dict(0)
        return optimizer.state_dict()["state"] if trainer.is_world_process_zero() else {}
    return whole(optimizer.state_dict()["state"])


def train(folder, resume=None, stop_at=None, callbacks=(), **options):
    """Train 8 steps, or up to `stop_at` of them, and save what came of it."""
    trainer = build(folder, *callbacks, **options)
    memory = []
    trainer.on("on_optimizer_step", lambda run: memory.append(held(run)), every=6)
    if stop_at:
        trainer.on("on_step_end", lambda control: control.request("training_stop", "as planned"), once=stop_at)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, memory


def train_with_clipped_part(folder, **options):
    """Train and clip the gradients of only the last layer, and return the trainer and the norms of these gradients."""
    trainer, norms = build(folder, max_grad_norm=0, optim="sgd", **options), []

    def clip():
        norms.append(trainer.accelerator.clip_grad_norm_(trainer.model.end.parameters(), 0.05).item())

    trainer.on("on_gradients", clip)
    trainer.train()
    return trainer, norms


def tell(folder, trainer, memory=(), **more):
    """Save what a training ended with."""
    trainer.save_model(f"{folder}/final")
    state = optimizer_state(trainer)
    if trainer.is_world_process_zero():
        history = trainer.state.log_history
        end = {
            "norms": [entry["grad_norm"] for entry in history if "loss" in entry],
            "losses": [entry["loss"] for entry in history if "loss" in entry],
            "labels": [entry["eval_labels"] for entry in history if "eval_labels" in entry],
            "eval_losses": [entry["eval_loss"] for entry in history if "eval_loss" in entry],
            "memory": list(memory),
            "optimizer": state,
            **more,
        }
        torch.save(end, f"{folder}/end.pt")


def all_ways(top):
    for name, options in WAYS.items():
        tell(f"{top}/{name}", *train(f"{top}/{name}", **options))
        if name not in IN_OTHER_WORDS:
            tell(f"{top}/{name}-2", *train(f"{top}/{name}-2", gradient_accumulation_steps=2, **options))
            resumed = f"{top}/{name}-resumed"
            tell(resumed, *train(resume=f"{top}/{name}/checkpoint-4", folder=resumed, **options))


def other_ways(top):
    """Resume what one way wrote by another, and what a single process wrote."""
    for one, other in (("ddp", "stage3"), ("stage3", "ddp"), ("stage3", "stage1"), ("simple", "stage2")):
        folder = f"{top}/{one}-to-{other}"
        tell(folder, *train(folder, resume=f"{top}/{one}/checkpoint-4", **WAYS[other]))
    for name in ("ddp", "simple", "stage1", "stage3"):
        tell(f"{top}/{name}-part", *train_with_clipped_part(f"{top}/{name}-part", **WAYS[name]))
    for other in ("stage1", "stage3"):
        folder = f"{top}/alone-to-{other}"
        tell(folder, *train(folder, resume=f"{top}/alone/checkpoint-8", **WAYS[other]))


def apart(top, rank):
    """Train on what seem to be two machines that share no disk, of which each saves all, and go on."""
    os.environ["LOCAL_RANK"] = "0"
    for name in ("simple", "stage1", "stage3"):
        own, options = f"{top}/{name}-apart-{rank}", {**WAYS[name], "save_on_each_node": True}
        train(own, callbacks=[EMA(0.5)], **options)
        train(f"{own}-resumed", resume=f"{own}/checkpoint-4", callbacks=[EMA(0.5)], **options)
    os.environ["LOCAL_RANK"] = str(rank)


def features(top):
    """Train with what else holds or changes weights, and go on with a model that is split."""
    options = {
        **{"load_best_model_at_end": True, "metric_for_best_model": "loss", "fsdp": "full_shard"},
        "fsdp_config": {
            **{"state_dict_type": "FULL_STATE_DICT", "activation_checkpointing": True},
            **{"transformer_layer_cls_to_wrap": ["Block"]},
        },
    }
    plain = {**options, "fsdp": None, "fsdp_config": None}
    for name, given in (("many", options), ("many-ddp", plain)):
        folder = f"{top}/{name}"
        trainer, _ = train(folder, callbacks=[EMA(0.5)], **given)
        again = trainer.evaluate()["eval_loss"]
        predicted = torch.tensor(trainer.predict(data().eval).predictions)
        tell(folder, trainer, again=again, predicted=predicted)
        trainer.train()
        tell(f"{folder}-twice", trainer)
    folder = f"{top}/many-resumed"
    tell(folder, *train(folder, f"{top}/many/checkpoint-4", callbacks=[EMA(0.5)], **options))
    half = {"fsdp": True, "fsdp_config": {"mixed_precision": "bf16"}}
    tell(f"{top}/half", *train(f"{top}/half", **half))
    for name in ("ddp", "fsdp"):
        frozen = Freeze("blocks", until=at(4))
        tell(f"{top}/{name}-thawed", *train(f"{top}/{name}-thawed", callbacks=[frozen], **WAYS[name]))


def inexact(top):
    """Train with a norm that is added up from the parts, as on other devices."""
    tell(f"{top}/inexact", *train(f"{top}/inexact", callbacks=[FSDP(exact=False)]))


def language(top):
    """Train a model of transformers, and resume what their Trainer wrote."""
    options = {"rows": "words", "neftune_noise_alpha": 5.0, "gradient_checkpointing": True, "eval_strategy": "no"}
    for name in ("ddp", "fsdp"):
        trainer, _ = train(f"{top}/words-{name}", **options, **WAYS[name])
        model = trainer.model.eval()
        with torch.no_grad():
            said = model.generate(torch.ones(2, 3, dtype=torch.long), max_new_tokens=4, do_sample=False, pad_token_id=0)
        tell(f"{top}/words-{name}", trainer, said=said)
    resumed = {"rows": "words", "resume": f"{top}/theirs/checkpoint-4", "max_steps": 4, "eval_strategy": "no"}
    tell(f"{top}/words-resumed", *train(f"{top}/words-resumed", **resumed, **WAYS["fsdp"]))


def notes(top):
    """Train weights that are laid out unusually, and carry notes of the user."""
    for way in ("ddp", "fsdp"):
        torch.manual_seed(0)
        model = Net()
        model.end.weight = nn.Parameter(torch.randn(33, 3).t())
        model.end.weight.slow = True
        trainer, _ = train(f"{top}/notes-{way}", model=model, **WAYS[way])
        noted = [name for name, weight in trainer.model.named_parameters() if hasattr(weight, "slow")]
        tell(f"{top}/notes-{way}", trainer, noted=noted)


def empty_models(top, rank):
    """Train models that were made without values: on all processes, and on all but the first."""
    with torch.device("meta"):
        models = [Net() for _ in range(3)]
    tell(f"{top}/made", *train(f"{top}/made", model=models[0], **WAYS["fsdp"]))
    tell(f"{top}/filled", *train(f"{top}/filled", f"{top}/fsdp/checkpoint-4", model=models[1], **WAYS["fsdp"]))
    torch.manual_seed(1)
    model = Net() if rank == 0 else models[2]
    tell(f"{top}/sent", *train(f"{top}/sent", model=model, **WAYS["fsdp"]))


def errors(top, rank):
    """Do what is refused, and save what is said."""
    said = {}

    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(6, 3))

        def forward(self, x):
            return x @ self.weight

    class Odd(Bare):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

    def hooked():
        model = Bare()
        model.weight.register_hook(lambda gradient: gradient / 2)
        return model

    def fails(name, *callbacks, before=None, **options):
        with torch.device(options.pop("device", "cpu")):
            model = options.pop("make", Net)()
        try:
            trainer = build(f"{top}/failing", *callbacks, model=model, **options)
            if before is not None:
                before(trainer)
            trainer.train()
        except TrainbusError as error:
            said[name] = str(error)

    def give_optimizer(trainer):
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)

    for name in ("simple", "stage1", "fsdp"):
        fails(f"{name} optimizer", before=give_optimizer, **WAYS[name])
    fails("half", bf16_full_eval=True, **WAYS["fsdp"])
    fails("batch size", auto_find_batch_size=True, **WAYS["fsdp"])
    fails("degree", FSDP(degree=3))
    fails("stage1 degree", sharding="stage1", sharding_degree=3)
    fails("scaler", FSDP(mixed_precision="fp16"))
    fails("class", FSDP(wrap=("Blok",)))
    fails("empty", device="meta")
    fails("never filled", make=Bare, device="meta", **WAYS["fsdp"])
    fails("number", make=lambda: Odd(nn.Parameter(torch.tensor(1.0))), **WAYS["fsdp"])
    fails("types", make=lambda: Odd(nn.Parameter(torch.ones(3, dtype=torch.float64))), **WAYS["fsdp"])
    fails("hook", make=hooked, **WAYS["fsdp"])
    fails("too few", make=Bare, **WAYS["simple"])
    if rank == 0:
        torch.save(said, f"{top}/errors.pt")


def main():
    """Make all runs, in the folder named on the command line."""
    atexit.register(no_thread_of_gloo_is_left)  # The first to be registered is the last to run.
    top, rank = sys.argv[1], int(os.environ["RANK"])
    sys.modules.setdefault("deepspeed", None)  # which transformers would import, later
    all_ways(top)
    if not ON_CPU:
        return
    other_ways(top)
    apart(top, rank)
    features(top)
    inexact(top)
    language(top)
    notes(top)
    empty_models(top, rank)
    errors(top, rank)
    last.append(train(f"{top}/last", **WAYS["fsdp"]))


last = []
"""What is alive when the interpreter ends, as in most programs, which end no trainer."""

if __name__ == "__main__":
    main()
