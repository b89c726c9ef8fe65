"""Set the seeds of all random number generators, and request deterministic operations."""

from __future__ import annotations

import os
import random

import numpy as np
import torch


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed the random number generators of Python, numpy and torch, on all devices.

    Args:
        seed: an integer from -2**63 to 2**64 - 1. numpy receives the seed modulo 2**32.
        deterministic: also restrict torch to deterministic operations, which are slower. An operation without a
            deterministic version raises `RuntimeError`.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    torch.cuda.manual_seed_all(seed)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this setting
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False


def enable_full_determinism(seed: int, warn_only: bool = False) -> None:
    """Seed all generators and restrict torch and CUDA to deterministic operations.

    Deterministic operations are slower. This function sets `CUDA_LAUNCH_BLOCKING` and other environment
    variables. Call this function before the first use of CUDA, because CUDA reads these variables only once.

    Args:
        seed: an integer from -2**63 to 2**64 - 1.
        warn_only: whether an operation without a deterministic version only causes a warning. If False, the operation
            raises `RuntimeError`.
    """
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
    set_seed(seed, deterministic=True)
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
