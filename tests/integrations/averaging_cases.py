"""Trainings on two ranks with weights that some steps do not use, and refused settings."""

import os
from functools import partial

# Imported later, these would find the process group as a default of their functions, and hold it.
import torch
import torch.distributed.optim
from torch import nn
from torch.utils.data import TensorDataset

import trainbus.integrations.fairscale.sharded_ddp  # noqa: F401
from trainbus import DDP, Freeze, TrainbusError, Trainer, TrainingArguments, at

RANK = int(os.environ.get("RANK", "0"))
WAYS = {"ddp": {}, "simple": {"sharded_ddp": "simple"}, "stage1": {"sharding": "stage1"}}


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(7, 7), nn.LayerNorm(7), nn.Dropout(0.1))

    def forward(self, x):
        return x + torch.relu(self.body(x))


class Net(nn.Module):
    """Four parts, of which training uses the last two in some steps only: in every third, and on one of the processes.

    One weight is never used, and there is a running mean.
    """

    def __init__(self, moody=False):
        super().__init__()
        self.start, self.norm = nn.Linear(6, 7, bias=False), nn.BatchNorm1d(7)
        self.parts = nn.ModuleList(Part() for _ in range(4))
        self.spare, self.end = nn.Parameter(torch.ones(3)), nn.Linear(7, 3)
        self.moody, self.calls = moody, 0

    def forward(self, x):
        x = self.norm(self.start(x))
        self.calls += self.training
        for index, part in enumerate(self.parts):
            resting = (index == 2 and self.calls % 3 > 0) or (index == 3 and (self.calls + RANK) % 2)
            if not (self.moody and self.training and resting):
                x = part(x)
        return self.end(x)


class Powers(torch.optim.Optimizer):
    """Keeps one of its options to itself."""

    def __init__(self, params, lr, power, **more):
        super().__init__(params, {"lr": lr, **more})
        self.power = power

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    weight.sub_(weight.grad.sign() * weight.grad.abs().pow(self.power), alpha=group["lr"])


class TwoModes(torch.optim.SGD):
    def train(self): ...
    def eval(self): ...


def build(folder, model, *callbacks, kind=Trainer, more=None, **options):
    torch.manual_seed(0)
    x = torch.randn(97, 6)
    rows = TensorDataset(x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long())
    arguments = {
        **{"per_device_train_batch_size": 4, "max_steps": 6, "learning_rate": 1e-2, "max_grad_norm": 0.5},
        **{"weight_decay": 0.01, "logging_steps": 1, "save_strategy": "no", "ddp_timeout": 60, "use_cpu": True},
        **{"disable_tqdm": True, "report_to": "none", **options},
    }
    torch.manual_seed(1)
    return kind(
        model(),
        TrainingArguments(folder, **arguments),
        train_dataset=rows,
        eval_dataset=rows,
        criterion=nn.CrossEntropyLoss(),
        callbacks=[*callbacks],
        **(more or {}),
    )


def end(trainer, **more):
    """Train, and return what came of it on this process."""
    trainer.train()
    history = trainer.state.log_history
    told = {name: [entry[name] for entry in history if name in entry] for name in ("grad_norm", "eval_loss")}
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return {"weights": weights, "after": trainer.evaluate()["eval_loss"], **told, **more}


def unused(folder, **options):
    return end(build(folder, partial(Net, moody=True), gradient_accumulation_steps=2, **options))


def thawed(folder, **options):
    """Thaw some weights, and have a handler freeze others and thaw them again, at a step that is evaluated."""
    options = {"eval_strategy": "steps", "eval_steps": 2, **options}
    trainer = build(folder, Net, Freeze("parts.0", until=at(2)), **options)
    trainer.on("on_step_end", lambda model: model.parts[1].requires_grad_(False), once=2)
    trainer.on("on_step_end", lambda model: model.parts[1].requires_grad_(True), once=4)
    modes = []
    trainer.on("on_loss", lambda model: modes.append(all(module.training for module in model.modules())))
    return end(trainer, modes=modes)


def stranger(folder, **options):
    """Thaw weights that the optimizer does not have."""

    def model():
        net = Net()
        net.parts[0].requires_grad_(False)
        return net

    trainer = build(folder, model, **options)
    trainer.on("on_step_end", lambda model: model.parts[0].requires_grad_(True), once=3)
    return end(trainer)


def own(folder, **options):
    """Train with an optimizer whose option cannot be read back, and a handler that sets gradients to None."""
    trainer = build(folder, Net, more={"optimizer_cls_and_kwargs": (Powers, {"lr": 1e-3, "power": 0.5})}, **options)
    trainer.on("on_step_end", lambda optimizer: optimizer.zero_grad())
    return end(trainer)


class PastTheWrapper(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        return nn.functional.cross_entropy(self.model(inputs[0]), inputs[1])


class MakesIt(Trainer):
    def create_optimizer(self):
        self.optimizer = Powers(self.model.parameters(), lr=1e-3, power=0.5)
        return self.optimizer


class Mixed(Net):
    def __init__(self):
        super().__init__()
        self.end.double()

    def forward(self, x):
        self.end, end = nn.Identity(), self.end
        x, self.end = super().forward(x), end
        return end(x.double()).float()


class Sparse(Net):
    def __init__(self):
        super().__init__()
        self.bag = nn.EmbeddingBag(2, 6, sparse=True)

    def forward(self, x):
        return super().forward(x + self.bag((x > 0).long()))


def refused(folder):
    """Do what is refused, and return what is said."""
    split = [WAYS["simple"], WAYS["stage1"]]
    two_modes = {"optimizer_cls_and_kwargs": (TwoModes, {"lr": 0.1})}
    cases = {
        "past": (WAYS.values(), {"kind": PastTheWrapper}, ()),
        "made": (split, {"kind": MakesIt}, ()),
        "two modes": (split, {"more": two_modes}, ()),
        "mixed": (split, {"model": Mixed}, ()),
        "sparse": (split[:1], {"model": Sparse, "optim": "sgd"}, ()),
        "low rank": ([{}], {"model": partial(Net, moody=True)}, (DDP(comm_hook="powersgd"),)),
        "static": ([{}], {"gradient_accumulation_steps": 2}, (DDP(static_graph=True),)),
    }
    said = {}
    for name, (ways, given, callbacks) in cases.items():
        said[name] = []
        for way in ways:
            try:
                options = {key: value for key, value in given.items() if key != "model"}
                build(folder, given.get("model", Net), *callbacks, **options, **way).train()
            except TrainbusError as error:
                said[name].append(f"{type(error).__name__}: {error}")
    return said


def main(folder):
    """Make all trainings, and save what each process ends with."""
    cases = {function.__name__: function for function in (unused, thawed, stranger, own)}
    found = {
        name: {way: make(f"{folder}/{name}-{way}", **options) for way, options in WAYS.items()}
        for name, make in cases.items()
    }
    found["refused"] = refused(f"{folder}/refused")
    torch.save(found, f"{folder}/averaging{RANK}.pt")
