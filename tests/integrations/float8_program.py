"""Trainings on two ranks with `Float8`, each with another way to shard. Each writes a checkpoint of its last step."""

import sys

import torch.distributed.optim  # noqa: F401  # before a process group exists

import trainbus.callbacks.parallel.fully_shard  # noqa: F401
from support.models import Wide
from support.trainers import net_trainer
from trainbus import Checkpoint, Float8, at

WAYS = {"ddp": {}, "stage1": {"sharding": "stage1"}, "stage3": {"sharding": "stage3"}}


def main(top):
    for way, options in WAYS.items():
        settings = {"model": Wide(), "learning_rate": 0.01, "per_device_train_batch_size": 2, **options}
        trainer = net_trainer(f"{top}/{way}", Float8(emulate=True), Checkpoint(at(6)), **settings)
        trainer.train()
        assert not any("forward" in vars(module) for module in trainer.model.modules())
    trainer.end()


if __name__ == "__main__":
    main(sys.argv[1])
