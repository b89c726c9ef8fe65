"""Programs that tests start, on one process or on two ranks."""

from __future__ import annotations

import functools
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from support.fork_server import Server

TESTS = Path(__file__).resolve().parent.parent
"""The folder that a program needs on its path to import `support`."""

TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2")

PATIENCE = 4
"""The factor by which a program may exceed the time that its test allows, because the machine may be busy."""

IMPORTED = (
    *("torch.distributed", "torch.distributed.optim", "torch.nn.parallel", "torch._dynamo", "safetensors.torch"),
    *("support.models", "support.data", "support.outcomes", "trainbus.callbacks.compose"),
    *("trainbus.engine.trainer", "trainbus.callbacks.parallel.fully_shard"),
)
"""The modules that the fork server imports. None of them reads a variable of `AT_RUN` when it is imported."""

HUGGING_FACE = (
    *("datasets", "peft", "transformers.trainer", "transformers.trainer_seq2seq", "transformers.generation"),
    *("transformers.models.bert.modeling_bert", "transformers.models.gpt2.modeling_gpt2"),
)
"""The modules that a second fork server imports in addition."""

AT_RUN = frozenset(
    {
        *("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONPATH"),
        # Libraries that the fork server does not import read these.
        *("DS_ACCELERATOR", "WANDB_SWEEP_PARAM_PATH", "HF_ENDPOINT", "HF_HOME", "HF_HUB_OFFLINE"),
    }
)
"""Variables that a test may set for a forked program. With other variables, the program gets a new interpreter."""


def environment(**settings: str) -> dict[str, str]:
    """Return the environment of a program that can import `support`. Settings override variables."""
    made = {**os.environ, **settings}
    paths = [str(TESTS), made.get("PYTHONPATH", "")]
    return {**made, "PYTHONPATH": os.pathsep.join(filter(None, paths))}


@functools.cache
def server(*modules: str) -> Server:
    """Return the fork server of this process that has imported these modules too."""
    return Server([*IMPORTED, *modules], environment(OMP_NUM_THREADS="1", PYTHONWARNINGS="ignore"))


def run_program(
    *command: str | Path,
    timeout: float,
    code: int = 0,
    imported: tuple[str, ...] = (),
    folder: Path | str = ".",
    **settings: str,
) -> subprocess.CompletedProcess[str]:
    """Run a Python program with one thread and return what it printed.

    Args:
        command: the program and its arguments. Options of Python, such as `*TORCHRUN`, come first.
        timeout: in seconds, on a machine that does nothing else. The program is killed and the test fails after four
            times as long.
        code: the expected exit code. With another one the test fails and shows the end of the output.
        imported: modules that the program imports and that take long. Several programs share the import.
        folder: its working folder.
        settings: variables of the environment. If one is not in `AT_RUN`, the program gets a new interpreter.
    """
    variables = environment(**{"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", **settings})
    words, limit = [*map(str, command)], timeout * PATIENCE
    if words[0].endswith(".py") and settings.keys() <= AT_RUN:
        done = server(*imported).run(words, variables, os.path.abspath(folder), limit)
    else:
        whole = [sys.executable, *words]
        done = subprocess.run(whole, env=variables, cwd=folder, capture_output=True, text=True, timeout=limit)
    assert done.returncode == code, (done.stdout + done.stderr)[-4000:]
    return done


def run(*command: str | Path, timeout: float, **options: Any) -> str:
    """Run a Python program with one thread and return its stderr. The options are those of `run_program`."""
    return run_program(*command, timeout=timeout, **options).stderr


def run_on_two(*command: str | Path, timeout: float, imported: tuple[str, ...] = (), **settings: str) -> None:
    """Run a program on two ranks, in the environment of torchrun. It starts three seconds sooner than torchrun."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    world = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    if settings.keys() <= AT_RUN:
        server(*imported)  # start it here, before the threads ask for it
    with ThreadPoolExecutor() as pool:
        both = [
            pool.submit(
                run, *command, timeout=timeout, imported=imported, RANK=rank, LOCAL_RANK=rank, **world, **settings
            )
            for rank in "01"
        ]
    for process in both:
        process.result()


def ends_on_two(*command: str | Path, timeout: float) -> list[dict[str, Any]]:
    """Run a program on two ranks. Return what each rank wrote of its runs to `end-<rank>.json`, in order of rank.

    The last word of the command is the folder that the program writes to.
    """
    run_on_two(*command, timeout=timeout)
    return [json.loads((Path(command[-1]) / f"end-{rank}.json").read_text()) for rank in range(2)]


def of_both(ends: list[dict[str, Any]], run: str, value: str) -> Any:
    """Return the value of a run that `ends_on_two` returned. It must be the same on both ranks."""
    first, second = (of_rank[run][value] for of_rank in ends)
    assert first == second, f"{run}: {value} differs"
    return first
