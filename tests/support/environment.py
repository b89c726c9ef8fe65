"""The environment of the tests: variables, time zone and locale that do not depend on the machine or on the user."""

from __future__ import annotations

import contextlib
import locale
import os
import shutil
import signal
import site
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

KEPT = frozenset(
    {
        # Where programs and libraries are.
        *("PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "VIRTUAL_ENV"),
        *("PYTHONPATH", "PYTHONHOME", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE"),
        *("USER", "LOGNAME", "CC", "CXX", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS"),
        # Settings of the developer for the tests.
        *("CI", "UPDATE_GOLDEN", "TRAINBUS_TORTURE", "TRAINBUS_PROGRAMS", "TRAINBUS_TESTS_ON", "TRAINBUS_KILL_SEED"),
        # A CPU with fewer instructions: the tests must pass on it too.
        "ATEN_CPU_CAPABILITY",
    }
)
"""Variables that tests see unchanged. Variables with names that begin with `PYTEST_` are also unchanged. All others are
removed."""

MADE = {
    **{"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONUTF8": "1"},
    **{"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "TQDM_DISABLE": "1"},
    # No test uses the network. A library that reports to a service must not wait for the service.
    **{"WANDB_MODE": "offline", "HF_HUB_DISABLE_TELEMETRY": "1"},
    # The repository may belong to another user, as in a container.
    **{"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"},
}
"""Variables that the tests set, besides those of folders."""


def made_environment(found: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the variables of the tests.

    Args:
        found: the variables with which the tests were started.
        folder: a folder for the home and for temporary files.
    """
    kept = {name: value for name, value in found.items() if name in KEPT or name.startswith("PYTEST_")}
    gpus = found.get("CUDA_VISIBLE_DEVICES") if found.get("TRAINBUS_TESTS_ON") == "gpus" else ""
    return {
        **kept,
        **MADE,
        **({} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}),
        **{"HOME": str(folder / "home"), "TMPDIR": str(folder / "temporary")},
        # pytest keeps the folders of failed tests, so they must not be in the folder that is deleted at the end.
        "PYTEST_DEBUG_TEMPROOT": found.get("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir()),
        # Python finds the packages of the user in this folder, although HOME is another folder.
        "PYTHONUSERBASE": site.getuserbase(),
        # pyright installs itself here once.
        "PYRIGHT_PYTHON_CACHE_DIR": found.get(
            "PYRIGHT_PYTHON_CACHE_DIR", os.path.expanduser("~/.cache/pyright-python")
        ),
    }


def enter() -> Path | None:
    """Replace the environment of this process, and return a folder to delete at the end of the tests.

    Call it before torch and others are imported, because they read variables when they are imported. A worker of
    pytest-xdist inherits the variables and the folder, so it gets None.
    """
    folder = None
    if "PYTEST_XDIST_WORKER" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="trainbus-tests-"))
        made = made_environment(os.environ, folder)
        for name in ("HOME", "TMPDIR"):
            Path(made[name]).mkdir()
        os.environ.clear()
        os.environ.update(made)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under `nohup`, the programs of tests would ignore it too
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # a shell ignores it in the commands that it starts with `&`
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # Python read time zone, temporary folder and locale at its start or at their first use. Read them again.
    time.tzset()
    tempfile.tempdir = None
    with contextlib.suppress(locale.Error):  # old systems have no C.UTF-8
        locale.setlocale(locale.LC_ALL, "C.UTF-8")
    return folder


def leave(folder: Path | None) -> None:
    """Delete the folder that `enter` returned."""
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def restored_process() -> Iterator[None]:
    """Restore the variables, the working folder and the module path of this process at the end."""
    variables, folder, path = dict(os.environ), os.getcwd(), list(sys.path)
    try:
        yield
    finally:
        for name in {*variables, *os.environ} - {"PYTEST_CURRENT_TEST"}:  # pytest changes it during a test
            if name not in variables:
                del os.environ[name]
            elif os.environ.get(name) != variables[name]:
                os.environ[name] = variables[name]
        os.chdir(folder)
        sys.path[:] = path
