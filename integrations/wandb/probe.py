"""Check that wandb's server answers before the client connects, because the client may retry without a time limit."""

from __future__ import annotations

import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import wandb


def problem_of_service(settings: Mapping[str, Any], timeout: float) -> str:
    """Send a request to wandb's server. Return why the server does not answer; an empty text if it answers.

    Any HTTP answer except a server error means that the server is available. The request has no API key, so an answer
    such as 401 counts too. If `settings` has a proxy, the function sends no request and returns an empty text.

    Args:
        settings: the fields of `wandb.Settings` that the user set.
        timeout: the longest time to wait, in seconds.
    """
    if any("proxy" in name or "proxies" in name for name in settings):
        return ""  # only the client knows how to use the proxy
    url = settings.get("base_url") or os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url
    body = b'{"query": "query { viewer { id } }"}'
    headers = {"Content-Type": "application/json", "User-Agent": f"wandb/{wandb.__version__}"}
    unchecked = settings.get("insecure_disable_ssl") or os.environ.get("WANDB_INSECURE_DISABLE_SSL")
    context = ssl._create_unverified_context() if unchecked else None
    try:
        request = urllib.request.Request(f"{str(url).rstrip('/')}/graphql", body, headers)
        with urllib.request.urlopen(request, timeout=timeout, context=context):
            return ""
    except urllib.error.HTTPError as error:
        return f"{url} answers with the error {error.code}" if error.code >= 500 else ""
    except (OSError, ValueError) as error:
        return f"{url} does not answer: {getattr(error, 'reason', None) or error}"


def problem_of_error(error: BaseException) -> str:
    """Return why the client could not open a run online, as one line."""
    text = str(error).strip().partition("\n")[0]
    if text in ("", "<no message>"):  # the client has no words for an answer such as 401
        text = "the service refused the run without a reason. Check the key and the project, such as with `wandb login`"
    return f"{type(error).__name__}: {text}".rstrip(".")
