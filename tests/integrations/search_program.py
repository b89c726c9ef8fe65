"""A search on several ranks. Each writes its observations to the given folder."""

import json
import os
import sys
from pathlib import Path

import optuna

from support.data import points
from support.models import Regression
from support.trainers import regression_trainer
from trainbus import TrainbusError


class PruneFirst(optuna.pruners.BasePruner):
    """Gives up the first trial at its first report."""

    def prune(self, study, trial):
        return trial.number == 0


def model_init(trial):
    return Regression(dropout=0.0 if trial is None else trial.suggest_float("dropout", 0.0, 0.5))


folder = Path(sys.argv[1])
args = {"eval_strategy": "epoch", "use_cpu": True, "disable_tqdm": True}
built = regression_trainer(folder / "out", model_init=model_init, eval_dataset=points(8, seed=1), args=args)
seen = {"begun": [], "ended": []}
built.on("on_train_begin", lambda args: seen["begun"].append(args.run_name))
built.on("on_train_end", lambda args: seen["ended"].append(args.run_name))
# Each process makes its own sampler; only the first one's is asked.
best = built.hyperparameter_search(
    lambda trial: {"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1)},
    n_trials=3,
    backend="optuna",
    pruner=PruneFirst(),
)
seen["best"] = best[:3]
plain = regression_trainer(folder / "out", model_init=Regression, eval_dataset=points(8, seed=1), args=args)
try:
    plain.hyperparameter_search(lambda trial: {"learning_rat": 1.0}, n_trials=1, backend="optuna")
except TrainbusError as error:
    seen["refused"] = str(error)
    seen["refused"] = seen["refused"][seen["refused"].index("`learning_rat`") :]
try:
    plain.hyperparameter_search(lambda trial: {}, n_trials=1, backend="optuna", storage="sqlite:////missing/study.db")
except Exception as error:  # of sqlalchemy on rank 0
    seen["no study"] = "unable to open database file" in str(error)
(folder / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(seen))
built.end()
