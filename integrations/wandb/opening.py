"""Call `wandb.init` for a run. If the service fails, open the run offline."""

from __future__ import annotations

import logging
import os
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import wandb

from ...callbacks.base.tracker_rows import AXIS
from . import identity, service
from .identity import Identity
from .options import client_settings, from_environment
from .probe import problem_of_error, problem_of_service

logger = logging.getLogger(__name__)


@dataclass
class Request:
    """The values that the tracker needs to open a wandb run."""

    options: dict[str, Any]
    """The options of `wandb.init`, without `settings`."""
    settings: dict[str, Any]
    """The fields of `wandb.Settings` that the user set."""
    folder: Path
    """The output folder, which stores the identity."""
    identity: Identity
    """The identity of the run, with the segments of earlier processes."""
    config: dict[str, Any]
    """The config of the run."""
    changes: dict[str, Any] = field(default_factory=dict)
    """The values that a resume adds to the config."""
    known_step: int = -1
    """The last written step according to the checkpoint; -1 if unknown. It is used if this machine lacks a segment."""
    known_rows: int = -1
    """The number of rows up to `known_step`, according to the checkpoint; -1 if unknown."""
    resumes: bool = False
    """Whether an earlier process wrote to the run."""
    init_timeout: float = 60.0
    """The longest time to wait for the run to open, in seconds."""
    finish_timeout: float = 300.0
    """The longest time to wait for the run to finish, in seconds."""
    axis_of: Callable[[str], str] = field(default=lambda name: AXIS)
    """Column -> the column of its axis."""
    stop: Callable[[], None] | None = None
    """The function that a thread of the client calls when the user presses Stop on the web page. None: no function."""
    before_finish: Callable[[], None] | None = None
    """The function that the client calls when the run finishes, before its last record. None: no function."""
    save_code: bool = False
    """Whether the code of the program is uploaded."""
    primary: bool = True
    """Whether this process writes rows and sets the final state of the run. False for additional writers of a shared
    run."""


def request_after(request: Request, ended: Any) -> Request:
    """Return the request for a new wandb run in the project of a finished run.

    Args:
        request: the request with which the session joined the finished run. The new request has a new id, and the
            project, the entity, the group and the offline mode of `ended`. All other options are the same.
        ended: the finished wandb run, which the user's program had opened.
    """
    settings, run_id = ended.settings, uuid.uuid4().hex
    place = {"project": settings.project, "entity": settings.entity, "group": settings.run_group}
    if ended.offline:
        place["mode"] = "offline"
    options = {**request.options, **{name: value for name, value in place.items() if value}, "id": run_id}
    return replace(request, options=options, identity=Identity(run_id, config=request.config), resumes=False)


def init(request: Request) -> Any:
    """Open the wandb run that `request` describes, and return its `wandb.Run` object.

    If the service fails, open the run offline. If an earlier segment of the run is not uploaded yet, open the run
    offline too. Otherwise, the rows would arrive in the wrong order.

    Raises:
        Exception: an error of `wandb.init` in offline mode.
    """
    options = dict(request.options)
    if request.resumes and any(not part.offline for part in request.identity.segments):
        options.setdefault("resume", "must")
    elif request.resumes:
        options.setdefault("resume", "allow")
    if options.get("mode") not in (None, "online", "run", "shared"):
        return _call_init(request, options, request.init_timeout)
    if waiting := request.identity.waiting:
        logger.warning(
            "The run %s has a part that is not uploaded. The run stays offline, so that its rows keep their order. "
            "Upload that part first to go online: %s",
            *(request.identity.run_id, "; ".join(identity.sync_commands(waiting))),
        )
        return _call_init(request, {**options, "mode": "offline"}, request.init_timeout)
    began, run_id = time.monotonic(), request.identity.run_id
    problem = problem_of_service(request.settings, request.init_timeout)
    if not problem:
        try:
            return _call_init(request, options, max(1.0, request.init_timeout - (time.monotonic() - began)))
        except Exception as error:
            problem, run_id = problem_of_error(error), _offline_id(run_id)
    live = _call_init(request, {**options, "mode": "offline", "id": run_id}, request.init_timeout)
    logger.warning(
        "wandb is not online: %s. The run is offline. Upload it later: wandb sync %s", problem, live.sync_dir
    )
    return live


def _offline_id(run_id: str) -> str:
    """Return the id for an offline run that replaces the online run `run_id`, which could not be opened.

    The process wandb-core still uses `run_id`. If this program started wandb-core and has no open runs, the function
    ends wandb-core and returns `run_id`. Otherwise, it returns `<run_id>-offline`.
    """
    return run_id if not service.has_open_runs() and service.restart() else f"{run_id}-offline"


def _call_init(request: Request, options: Mapping[str, Any], timeout: float) -> Any:
    settings = client_settings(request.settings, timeout, request.finish_timeout, request.stop)
    offline = options.get("mode") in ("offline", "dryrun")
    given = {name: value for name, value in options.items() if not (offline and name == "resume")}
    # Without `create_new`, the client would return or finish another open run of this program.
    reinit = "create_new" if wandb.run is not None or service.has_open_runs() else None
    with _client_environment():
        live = wandb.init(**{"config": request.config, "reinit": reinit, **given, "settings": settings})
    # The run becomes `wandb.run`, for code that calls `wandb.log`, unless another run of ours has that place.
    if reinit and "reinit" not in given and wandb.run is None:
        service.make_global(live)
    return live


@contextmanager
def _client_environment() -> Iterator[None]:
    """Change environment variables for the client inside a `with` block.

    - The client does not report its own errors. If the service is down, a report delays the exit by 30 s.
    - The client does not see empty variables and empty tags, because it refuses most of them.
    """
    empty = [name for name, value in os.environ.items() if name.startswith("WANDB_") and not value]
    wanted: dict[str, str | None] = dict.fromkeys(empty)
    wanted["WANDB_ERROR_REPORTING"] = os.environ.get("WANDB_ERROR_REPORTING") or "false"
    wanted["WANDB_TAGS"] = ",".join(from_environment().get("tags", ())) or None
    before = {name: os.environ.get(name) for name in wanted}
    try:
        _set_variables(wanted)
        yield
    finally:
        _set_variables(before)


def _set_variables(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
