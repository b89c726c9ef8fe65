"""The integration of Weights & Biases: the tracker, and hyperparameter search with sweeps."""

from .tracker import Wandb as Wandb
