"""Weights & Biases: tracking and sweeps."""

from .tracker import Wandb as Wandb
