"""The integration of Weights & Biases: the tracker, and hyperparameter search with sweeps.

In this folder, the client is the Python package wandb, and the service is wandb's server. The client starts a local
process, wandb-core, which writes the files of a run and uploads them.
"""

from .tracker import Wandb as Wandb
