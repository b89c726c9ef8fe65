"""Post a message to a webhook, such as the webhook of a Slack channel, when a run begins, ends or fails."""

from __future__ import annotations

import json
import logging
import threading
import urllib.request
from dataclasses import dataclass, field

from trainbus import Callback, Run, Stage, TrainerControl, TrainerState

logger = logging.getLogger(__name__)


def message(name: str, what: str) -> bytes:
    """Return the body of a request, as Slack and Mattermost take it."""
    return json.dumps({"text": f"{name}: {what}"}).encode()


@dataclass
class NotifyWebhook(Callback):
    """Posts to a webhook on rank 0 when a run begins, ends or fails. If a post fails, the callback logs a warning."""

    stage = Stage.REPORT

    url: str = field(default="", repr=False)
    """The address of the webhook. The address is a secret, so it is not shown. Empty: post nothing."""
    timeout: float = 5.0
    """The seconds after which a post fails. The run waits for posts only when it ends."""
    _open: list[threading.Thread] = field(default_factory=list, init=False, repr=False, compare=False)

    def on_train_begin(self, run: Run, state: TrainerState) -> None:
        self._post(run, f"training begins at step {state.global_step} of {state.max_steps}")

    def on_train_end(self, run: Run, control: TrainerControl) -> None:
        self._post(run, f"training ends. {control.why('training_stop')}")

    def on_exception(self, run: Run, exception: BaseException) -> None:
        self._post(run, f"training fails after step {run.state.global_step}: {type(exception).__name__}: {exception}")

    def on_close(self) -> None:
        threads, self._open = self._open, []
        for thread in threads:
            thread.join(self.timeout + 1)

    def _post(self, run: Run, what: str) -> None:
        if self.url and run.state.is_world_process_zero:
            body = message(run.args.run_name or str(run.args.output_dir), what)
            thread = threading.Thread(target=self._send, args=(body,), daemon=True, name="notify")
            thread.start()
            self._open.append(thread)

    def _send(self, body: bytes) -> None:
        request = urllib.request.Request(self.url, body, {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=self.timeout) as answer:
                answer.read()
        except (OSError, ValueError) as error:
            logger.warning("The webhook did not take a message: %s", error)
