"""DeepSpeed: its engine makes the steps and shards optimizer states, gradients and weights."""

from .callback import DeepSpeed as DeepSpeed
