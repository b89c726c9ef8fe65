"""Collect the options of a wandb run from the callback and the environment, and check them before anything starts."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

import wandb
from wandb.util import load_yaml

from ...callbacks.base.predictions import Predictions
from ...events.errors import ArgumentError, nearest

MODES = ("online", "offline", "shared", "disabled", "dryrun", "run")
"""The modes that the client knows."""

OFFLINE = ("offline", "dryrun", "disabled")
"""The modes that do not use the service."""

ON_CHANGE = ("continue", "fork", "new")
"""The allowed values of the field `on_change`."""
LOG_MODEL = ("end", "checkpoint", "best")
"""The allowed values of the field `log_model`."""
WATCH = ("gradients", "parameters", "all")
"""The allowed values of the field `watch`."""

ENVIRONMENT = {
    "project": "WANDB_PROJECT",
    "entity": "WANDB_ENTITY",
    "name": "WANDB_NAME",
    "group": "WANDB_RUN_GROUP",
    "notes": "WANDB_NOTES",
    "job_type": "WANDB_JOB_TYPE",
    "mode": "WANDB_MODE",
    "id": "WANDB_RUN_ID",
}
"""Option of `wandb.init` -> the environment variable that sets this option. The client reads the variables once per
process. trainbus reads them for each run."""

SETTINGS = {
    **{"id": "run_id", "name": "run_name", "group": "run_group", "notes": "run_notes", "tags": "run_tags"},
    **{"job_type": "run_job_type", "dir": "root_dir"},
}
"""Option of `wandb.init` -> the field of `wandb.Settings`, for options whose field has another name."""


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "options": (lambda value: isinstance(value, Mapping), "a dict, such as {'dir': 'outputs'}"),
    "options['config']": (lambda value: isinstance(value, Mapping), "a dict, such as vars(args)"),
    "axis": (lambda value: isinstance(value, (str, Mapping)), "the name of an axis, or a dict of name pattern -> axis"),
    "init_timeout": (lambda value: _is_number(value) and value > 0, "a number of seconds above 0"),
    "finish_timeout": (_is_number, "a number of seconds, 0 or more"),
    "reference_above": (lambda value: value is None or _is_number(value), "a number of bytes, such as 10e9, or None"),
    "tables": (lambda value: value is None or isinstance(value, Predictions), "Predictions(rows=64), or None"),
    **{name: (lambda value: isinstance(value, bool), "True or False") for name in ("alerts", "save_code", "shared")},
}
"""Field of `Wandb` -> a function that returns whether a value is valid, and a text that lists the valid values."""

FALSE = ("", "0", "f", "false", "n", "no", "off")
FLUSH_SECONDS = 1.0
"""The time between two writes of the run file, in seconds. With the client's default of 15 s, a killed process could
lose the rows of 15 s."""


def folder_of(options: Mapping[str, Any]) -> str:
    """Return the absolute folder for the files of a run.

    The folder is the option `dir`, else `root_dir` in the option `settings`, else `WANDB_DIR`, else the working
    directory. If the working directory is deleted, a relative folder becomes the temporary folder of the system.

    The wandb client itself would use the folder of the first run of a process for all later runs.

    Args:
        options: the options of `wandb.init` that the user set.
    """
    folder = options.get("dir") or settings_of(options).get("root_dir") or os.environ.get("WANDB_DIR") or os.curdir
    try:
        return os.path.abspath(os.path.expanduser(folder))  # with a relative one, the service writes no run file
    except OSError:  # the working directory is deleted
        return tempfile.gettempdir()  # the client does the same for a folder that cannot be written


def is_disabled() -> bool:
    """Return whether `WANDB_DISABLED` turns the tracker off, for example with the value `true`."""
    return os.environ.get("WANDB_DISABLED", "").strip().lower() not in FALSE


def from_environment() -> dict[str, Any]:
    """Return the options of `wandb.init` that environment variables set."""
    found: dict[str, Any] = {
        name: value for name, variable in ENVIRONMENT.items() if (value := os.environ.get(variable))
    }
    if tags := os.environ.get("WANDB_TAGS"):
        found["tags"] = [tag.strip() for tag in tags.split(",") if tag.strip()]
    return found


def check_environment(given: Mapping[str, Any]) -> None:
    """Check the environment variables of `ENVIRONMENT` that no option in `given` overrides.

    Raises:
        ArgumentError: for an unknown mode, or a value that wandb refuses. The error names the variable.
    """
    variables = {**ENVIRONMENT, "tags": "WANDB_TAGS"}
    for name, value in from_environment().items():
        variable = variables[name]
        if name == "mode" and "mode" not in given and value not in MODES:
            known = ", ".join(MODES)
            raise ArgumentError(
                f"{variable}={value!r} is unknown{nearest(value.strip().lower(), MODES)} Known: {known}."
            )
        if name not in given:
            try:
                check_values({name: value}, {})
            except ArgumentError as error:
                raise ArgumentError(f"{variable}={os.environ[variable]!r}: {error} Change or unset it.") from error


def choice_from_environment(variable: str, known: tuple[str, ...]) -> str | None:
    """Return the choice that an environment variable names; None if the variable is not set.

    The value `true`, `1` or `yes` selects the first choice. The value `false`, `0` or `no` has the same effect as a
    variable that is not set.

    Args:
        variable: the name of the environment variable.
        known: the choices.

    Raises:
        ArgumentError: for an unknown value. The error suggests the most similar choice.
    """
    value = os.environ.get(variable, "").lower()
    if value in FALSE:
        return None
    if value in ("true", "1", "t", "y", "yes", "on"):
        return known[0]
    if value not in known:
        raise ArgumentError(f"{variable}={value!r} is unknown{nearest(value, known)} Set {', '.join(known)} or false.")
    return value


def check_choices(tracker: Any) -> None:
    """Check the fields of a `Wandb` that have a fixed set of values.

    Raises:
        ArgumentError: if such a field has another value.
    """
    choices = {"mode": MODES, "on_change": ON_CHANGE, "log_model": LOG_MODEL, "watch": WATCH}
    for name, known in choices.items():
        value = getattr(tracker, name)
        if value is not None and value not in known:
            raise ArgumentError(f"{name}={value!r} is unknown{nearest(value, known)} Known: {', '.join(known)}.")


def check_fields(callback: Any) -> None:
    """Check the fields of a `Wandb` callback that are in the table `FIELDS`. The wandb client does not check them.

    Raises:
        ArgumentError: for an invalid value. The error names the field and the valid values.
    """
    for name, (fits, takes) in FIELDS.items():
        value = (callback.options.get("config") or {}) if name == "options['config']" else getattr(callback, name)
        if not fits(value):
            raise ArgumentError(f"Wandb({name}={value!r}): set {takes}.")


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check options for `wandb.init` and return them.

    Raises:
        ArgumentError: if `wandb.init` does not know an option, if `wandb.Settings` does not know a field of the option
            `settings`, or if wandb refuses a value. Also for `mode="shared"` with `fork_from` or `resume_from`.
    """
    known = [name for name in inspect.signature(wandb.init).parameters if name != "settings"]
    for name in options:
        if name not in (*known, "settings"):
            raise ArgumentError(f"wandb.init has no option {name!r}{nearest(name, known)} Known: {', '.join(known)}.")
    settings = settings_of(options)
    fields = wandb.Settings.model_fields
    for name in settings:
        if name not in fields:
            raise ArgumentError(f"wandb.Settings has no field {name!r}{nearest(name, fields)}")
    mode = options.get("mode") or settings.get("mode") or os.environ.get("WANDB_MODE")
    rewinds = [name for name in ("fork_from", "resume_from") if options.get(name) or settings.get(name)]
    if mode == "shared" and rewinds:
        raise ArgumentError(f"mode='shared' does not work with {rewinds[0]}: the client drops rows. Leave out one.")
    check_values(options, settings)
    return dict(options)


def check_values(options: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Check values by passing them to the class `wandb.Settings`.

    Args:
        options: options of `wandb.init`. An option without a field in `wandb.Settings` is not checked.
        settings: fields of `wandb.Settings`.

    Raises:
        ArgumentError: for a value that wandb refuses.
    """
    direct = {SETTINGS.get(name, name): value for name, value in options.items() if value is not None}
    fields = wandb.Settings.model_fields
    try:
        wandb.Settings(**{**settings, **{name: value for name, value in direct.items() if name in fields}})
    except Exception as error:  # pydantic's and the client's own errors
        detail = " ".join(str(error).split())
        raise ArgumentError(f"wandb refuses an option: {detail}") from error


def settings_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the option `settings` of `wandb.init` as a dict. Leave out fields that the user did not set."""
    settings = options.get("settings") or {}
    return dict(settings) if isinstance(settings, Mapping) else settings.model_dump(exclude_unset=True)


def client_settings(
    given: Mapping[str, Any], init_timeout: float, finish_timeout: float, stop: Callable[[], None] | None = None
) -> wandb.Settings:
    """Build the settings of the client.

    Args:
        given: the settings of the user. These settings have priority.
        init_timeout: the longest time to open the run, in seconds.
        finish_timeout: the longest time to finish the run, in seconds.
        stop: the function that the client calls if a user of the website stops the run; None for no function.
    """
    wanted: dict[str, Any] = {
        "init_timeout": init_timeout,
        "finish_timeout": finish_timeout,
        "x_transaction_log_flush_interval": FLUSH_SECONDS,
        "stop_fn": stop,
    }
    fields = wandb.Settings.model_fields
    supported = {name: value for name, value in wanted.items() if name in fields and value is not None}
    return wandb.Settings(**{**supported, **given})


def sweep_parameters() -> dict[str, Any]:
    """Return the parameters that `wandb agent` chose for this process; {} outside of a sweep.

    The agent writes the parameters to a file on its machine. Call this function on rank 0 only.

    Raises:
        ArgumentError: if the file cannot be read.
    """
    path = os.environ.get("WANDB_SWEEP_PARAM_PATH")
    if not path:
        return {}
    try:
        with open(path) as file:
            written = load_yaml(file)
        return {name: value["value"] for name, value in written.items() if isinstance(value, dict) and "value" in value}
    except Exception as error:
        raise ArgumentError(
            f"WANDB_SWEEP_PARAM_PATH={path!r} cannot be read: {error}. Start rank 0 on the machine of the agent."
        ) from error
