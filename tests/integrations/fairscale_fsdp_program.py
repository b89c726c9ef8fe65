"""Trainings on two ranks with fairscale's FullyShardedDataParallel, and with DDP, started by torchrun.

Each run saves its results. With `cuda` on the command line the runs use GPUs. Otherwise they run on the CPU with fake
CUDA streams.
"""

import atexit
import os
import sys

import torch
from ddp_program import no_thread_of_gloo_is_left
from fake_cuda import install_fake_streams
from sharding_program import tell, train, train_with_clipped_part

import trainbus.integrations.fairscale.fsdp as fairscale_fsdp
from support.sharding import Net, build, data
from trainbus import (
    EMA,
    Callback,
    Compile,
    FairscaleFSDP,
    Freeze,
    HalfEvaluation,
    KeepBest,
    MixedPrecision,
    Stage,
    TrainbusError,
    at,
)
from trainbus.integrations.fairscale.fsdp_units import FSDPUnit, units_of

WAYS = {
    "ddp": {},
    "2": {"sharded_ddp": "zero_dp_2 fairscale auto_wrap"},
    "3": {"sharded_ddp": "zero_dp_3 fairscale auto_wrap"},
    "3-offload": {"sharded_ddp": "zero_dp_3 fairscale offload auto_wrap"},
    "root": {"sharded_ddp": ["zero_dp_3", "fairscale"]},
}


class Scaled(Callback):
    """Scales the loss. No other callback does so on the CPU."""

    stage = Stage.PREPARE

    def on_setup(self, run):
        run.seams.fill("Scaled", scaler=torch.amp.GradScaler(run.args.device.type, init_scale=1024.0))


def all_ways(top, **more):
    for name, options in WAYS.items():
        tell(f"{top}/{name}", *train(f"{top}/{name}", **options, **more))
    for name in ("ddp", "2", "3-offload"):
        tell(f"{top}/{name}-2", *train(f"{top}/{name}-2", gradient_accumulation_steps=2, **WAYS[name], **more))
    for name in ("3", "3-offload"):
        folder = f"{top}/{name}-resumed"
        tell(folder, *train(folder, f"{top}/{name}/checkpoint-4", **WAYS[name], **more))
    tell(f"{top}/lean", *train(f"{top}/lean", callbacks=[FairscaleFSDP(bucket_cap_mb=0)], **more))


def other_ways(top):
    """Resume a checkpoint of one way to shard with another."""
    ways = {**WAYS, "stage3": {"sharding": "stage3"}}
    for one, other in (("ddp", "3"), ("3", "ddp"), ("3", "stage3")):
        folder = f"{top}/{one}-to-{other}"
        tell(folder, *train(folder, f"{top}/{one}/checkpoint-4", **ways[other]))


def features(top):
    """Train with other features, and continue with a model that is sharded."""
    for name in ("ddp", "3-offload"):
        best = KeepBest("loss")
        trainer = build(f"{top}/{name}-long", best, eval_on_start=True, **WAYS[name])
        before = trainer.evaluate()["eval_loss"]
        predicted = torch.tensor(trainer.predict(data().eval).predictions)
        trainer.train()
        best, after = trainer.state.best_metric, trainer.evaluate()["eval_loss"]
        trainer.train(f"{top}/{name}/checkpoint-4")
        tell(f"{top}/{name}-long", trainer, before=before, predicted=predicted, best=best, after=after)
    for name in ("ddp", "3"):
        frozen = Freeze("blocks", until=at(4))
        tell(f"{top}/{name}-thawed", *train(f"{top}/{name}-thawed", callbacks=[frozen], **WAYS[name]))
        tell(f"{top}/{name}-part", *train_with_clipped_part(f"{top}/{name}-part", **WAYS[name]))
        tell(f"{top}/{name}-scaled", *train(f"{top}/{name}-scaled", callbacks=[Scaled()], **WAYS[name]))
        trainer = build(f"{top}/{name}-failed", **WAYS[name])
        fail_in_backward(trainer, 3)
        trainer.train()
        tell(f"{top}/{name}-failed", trainer)
        options = {"rows": "words", "gradient_checkpointing": True, "eval_strategy": "no"}
        tell(f"{top}/words-{name}", *train(f"{top}/words-{name}", **options, **WAYS[name]))


def fail_in_backward(trainer, step):
    """Train until an error in the middle of a step."""

    def fail(gradient):
        raise ZeroDivisionError

    handle = trainer.on("on_loss", lambda outputs: outputs.register_hook(fail), once=step)
    try:
        trainer.train()
    except ZeroDivisionError:
        handle()


def names_and_hooks(top, rank):
    """Train, and save the names of the sharded weights and the number of calls of fairscale's gradient hook."""
    calls = []
    original = FSDPUnit._post_backward_hook
    FSDPUnit._post_backward_hook = lambda self, weight, *unused: calls.append(weight) or original(self, weight, *unused)
    trainer = build(f"{top}/names", **WAYS["3"])
    trainer.train()
    FSDPUnit._post_backward_hook = original
    if rank == 0:
        names = [name for name, _ in trainer.model.named_parameters()]
        found = {"names": names, "keys": [*trainer.model.state_dict()], "calls": len(calls)}
        torch.save({**found, "blocks": len(units_of(trainer.model))}, f"{top}/names.pt")
    return trainer


def errors(top, rank):
    """Try unsupported settings, and save the errors."""
    said = {}

    def fails(name, *callbacks, before=None, model=None, resume=None, **options):
        try:
            trainer = build(f"{top}/failing", *callbacks, model=model, **{**WAYS["3"], **options})
            if before is not None:
                before(trainer)
            trainer.train(resume)
        except TrainbusError as error:
            said[name] = str(error)

    def give_optimizer(trainer):
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1)

    fails("optimizer", before=give_optimizer)
    fails("adafactor", optim="adafactor")
    fails("average", EMA(0.5))
    fails("half evaluation", HalfEvaluation())
    fails("bf16", MixedPrecision("bf16"))
    fails("compile", Compile())
    fails("batch size", auto_find_batch_size=True)
    fails("generate", before=lambda trainer: vars(trainer.args).update(predict_with_generate=True))
    fails("half weights", model=Net().to(torch.bfloat16))
    fails("no values", model=Net().to("meta"))
    fails("already sharded", model=train(f"{top}/sgd", optim="sgd", max_steps=4, **WAYS["3"])[0].model)
    fails("state of sgd", resume=f"{top}/sgd/checkpoint-4")
    fairscale_fsdp.has_cuda = ORIGINAL_HAS_CUDA
    fails("words without cuda")
    fails("callback without cuda", FairscaleFSDP(), sharded_ddp="")
    if rank == 0:
        torch.save(said, f"{top}/errors.pt")


ORIGINAL_HAS_CUDA = fairscale_fsdp.has_cuda


def main():
    """Make all runs in the folder named on the command line."""
    top, rank = sys.argv[1], int(os.environ["RANK"])
    if "cuda" in sys.argv:
        all_ways(top, use_cpu=False)
        tell(f"{top}/half", *train(f"{top}/half", fp16=True, use_cpu=False, **WAYS["3"]))
        return
    atexit.register(no_thread_of_gloo_is_left)  # registered first, so it runs last
    sys.modules.setdefault("deepspeed", None)  # transformers would import it later
    install_fake_streams()
    all_ways(top)
    other_ways(top)
    features(top)
    errors(top, rank)
    install_fake_streams()
    alive_at_exit.append(names_and_hooks(top, rank))


alive_at_exit = []
"""Trainers that are alive when the interpreter exits, as in most programs, which do not call `trainer.end()`."""

if __name__ == "__main__":
    main()
