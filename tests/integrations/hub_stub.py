"""A local hub: the interface that a push needs, and a record of the pushes."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Commit:
    """One commit that arrived."""

    repository: str
    revision: str
    message: str
    files: dict[str, bytes]
    token: str | None

    @property
    def names(self) -> set[str]:
        """The names of its files."""
        return set(self.files)


@dataclass
class Hub:
    """The repositories of a user called `me`."""

    endpoint: str = ""
    asked_for: list[dict[str, Any]] = field(default_factory=list)
    """What each request for a new repository said."""
    repositories: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Full name -> the newest content of each file."""
    commits: list[Commit] = field(default_factory=list)
    """All commits, oldest first."""
    open: threading.Event = field(default_factory=threading.Event)
    """Commits wait until it is set."""
    arrived: threading.Event = field(default_factory=threading.Event)
    """Set when a commit arrives, before it waits."""
    failing: dict[str, int] = field(default_factory=dict)
    """A part of a path -> the status that requests for it are refused with."""

    @property
    def messages(self) -> list[str]:
        """The messages of all commits, oldest first."""
        return [commit.message for commit in self.commits]

    def answer(self, path: str, body: bytes, token: str | None) -> tuple[int, Any]:
        """Return the status and the answer to a request."""
        for part, status in self.failing.items():
            if part in path:
                return status, {"error": "out of order"}
        if path == "/api/repos/create":
            return self._create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if not path.startswith("/api/models/") or path.count("/") < 4:
            return 404, {"error": f"This hub knows no {path}"}
        owner, name, *action = path.removeprefix("/api/models/").split("/")
        repository = f"{owner}/{name}"
        if repository not in self.repositories:
            return 404, {"error": "Repository not found"}
        if not action or action[0] == "revision":
            return 200, {"id": repository, "modelId": repository, "sha": "a" * 40, "tags": [], "siblings": []}
        if action[0] == "preupload":
            return 200, {"files": [self._mode(repository, file["path"]) for file in json.loads(body)["files"]]}
        if action[0] == "commit":
            return self._commit(repository, action[1], [json.loads(line) for line in body.splitlines()], token)
        return 404, {"error": f"This hub knows no {path}"}

    def _create(self, wanted: dict[str, Any]) -> tuple[int, Any]:
        self.asked_for.append(wanted)
        repository = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        status = 409 if repository in self.repositories else 200
        self.repositories.setdefault(repository, {})
        return status, {"url": f"{self.endpoint}/{repository}", "name": repository}

    def _mode(self, repository: str, path: str) -> dict[str, Any]:
        content = self.repositories[repository].get(path)
        digest = None if content is None else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return {"path": path, "uploadMode": "regular", "shouldIgnore": False, "oid": digest}

    def _commit(self, repository: str, revision: str, lines: list[Any], token: str | None) -> tuple[int, Any]:
        self.arrived.set()
        assert self.open.wait(30), "the test forgot to let the commits through"
        header = next(line["value"] for line in lines if line["key"] == "header")
        files = {
            line["value"]["path"]: base64.b64decode(line["value"]["content"]) for line in lines if line["key"] == "file"
        }
        self.repositories[repository].update(files)
        self.commits.append(Commit(repository, revision, header["summary"], files, token))
        url = f"{self.endpoint}/{repository}/commit/{len(self.commits):040x}"
        return 200, {"success": True, "commitUrl": url, "commitOid": f"{len(self.commits):040x}"}


@contextmanager
def hub() -> Iterator[Hub]:
    """Serve a hub on a free port of this machine."""
    served = Hub()
    served.open.set()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = served.answer(self.path.partition("?")[0], body, self.headers.get("Authorization"))
            content = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    served.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        served.open.set()
        server.shutdown()
        thread.join()
        server.server_close()
