"""Read the files of offline wandb runs with the client's own messages, and serve a stub of the service on loopback."""

from __future__ import annotations

import gzip
import json
import re
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from wandb.proto import wandb_internal_pb2
from wandb_artifact_stub import ArtifactStub


@dataclass
class Segment:
    """What one process wrote to a run."""

    run_id: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    axes: dict[str, str] = field(default_factory=dict)
    exit_code: int | None = None
    preempting: bool = False
    artifacts: list[Any] = field(default_factory=list)
    alerts: list[Any] = field(default_factory=list)
    run: Any = None

    @property
    def steps(self) -> list[int]:
        return [row["train/global_step"] for row in self.rows if "train/global_step" in row]


def records(data: bytes) -> Iterator[Any]:
    """Yield the records of LevelDB's log format behind a header of 7 bytes, in blocks of 32 KiB."""
    position, parts = 7, []
    while position + 7 <= len(data):
        if 32768 - position % 32768 < 7:
            position += 32768 - position % 32768
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + 7])
        if kind == 0 or position + 7 + length > len(data):
            return
        parts.append(data[position + 7 : position + 7 + length])
        position += 7 + length
        if kind in (1, 4):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def put(into: dict[str, Any], item: Any) -> None:
    path = list(item.nested_key) or [item.key]
    for name in path[:-1]:
        into = into.setdefault(name, {})
    into[path[-1]] = json.loads(item.value_json)


def read(path: Path) -> Segment:
    """Return what a `.wandb` file holds."""
    found = Segment()
    for record in records(path.read_bytes()):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            found.run_id, found.run = record.run.run_id, record.run
            for item in record.run.config.update:
                put(found.config, item)
        elif kind == "config":
            for item in record.config.update:
                put(found.config, item)
        elif kind == "history":
            row: dict[str, Any] = {}
            for item in record.history.item:
                put(row, item)
            found.rows.append(row)
        elif kind == "summary":
            for item in record.summary.update:
                put(found.summary, item)
        elif kind == "metric":
            found.axes[record.metric.name] = record.metric.step_metric
        elif kind == "exit":
            found.exit_code = record.exit.exit_code
        elif kind == "preempting":
            found.preempting = True
        elif kind == "artifact":
            found.artifacts.append(record.artifact)
        elif kind == "alert":
            found.alerts.append(record.alert)
    return found


def segments(folder: Path) -> list[Segment]:
    """Return the offline segments under a folder, in the order in which they were opened."""
    order = sorted(folder.glob("wandb/offline-run-*/*.wandb"), key=_opened)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and read(order[-1]).exit_code is None:
        time.sleep(0.01)  # the service of the client writes the file in the background
    return [read(path) for path in order]


def _opened(path: Path) -> tuple[str, float]:
    """Folder names have seconds only; the header in the log file of the client is written once."""
    return path.parent.name.split("-")[2], (path.parent / "files").stat().st_ctime


@dataclass
class Stub:
    """A stub of the service. It stores what runs receive, and misbehaves on request."""

    url: str = ""
    rows: list[dict[str, Any]] = field(default_factory=list)
    """The rows of history that arrived."""
    summary: dict[str, Any] = field(default_factory=dict)
    upserts: list[dict[str, Any]] = field(default_factory=list)
    """The variables of each `UpsertBucket`."""
    exit_codes: list[int] = field(default_factory=list)
    labels: set[str] = field(default_factory=set)
    """The labels of the system metrics that arrived."""
    commands: list[dict[str, Any]] = field(default_factory=list)
    """What an agent of a sweep is told, one command at each heartbeat."""
    sweep_command: list[str] = field(default_factory=list)
    """The `command` of the sweep."""
    stopped: bool = False
    """Whether the user pressed Stop."""
    status: int = 200
    """The HTTP status of each answer."""
    delay: float = 0.0
    """Seconds before each answer."""
    existing: bool = False
    """Whether the run exists, with the stored rows."""
    artifacts: ArtifactStub = field(default_factory=ArtifactStub)
    slow_upsert: float = 0.0
    """Seconds before the answer that opens a run."""

    def graphql(self, request: dict[str, Any]) -> dict[str, Any]:
        query, variables = request.get("query", ""), request.get("variables") or {}
        data: dict[str, Any] = {}
        name = variables.get("name") or variables.get("run") or variables.get("runName") or "r"
        run: dict[str, Any] = {"id": "UnVu", "name": name, "displayName": "nice-1", "sweepName": None}
        run |= {"description": None, "historyLineCount": len(self.rows)}
        run |= {"project": {"name": "p", "entity": {"name": "ann"}}}
        if "viewer" in query:
            data["viewer"] = {"id": "v", "entity": "ann", "username": "ann", "flags": "{}", "teams": {"edges": []}}
        if "upsertBucket" in query:
            time.sleep(self.slow_upsert)
            self.upserts.append(variables)
            data["upsertBucket"] = {"bucket": run, "inserted": not self.existing}
        if "RunResumeStatus" in query and self.existing:
            tail = json.dumps([json.dumps(self.rows[-1])]) if self.rows else "[]"
            state = {
                "summaryMetrics": json.dumps(self.summary),
                "historyTail": tail,
                "eventsTail": "[]",
                "config": "{}",
            }
            lines = {"historyLineCount": len(self.rows), "eventsLineCount": 0, "logLineCount": 0, "tags": []}
            data["model"] = {
                "id": "m",
                "name": "p",
                "entity": {"id": "e", "name": "ann"},
                "bucket": {**run, **state, **lines},
            }
            data["model"]["bucket"]["wandbConfig"] = '{"t": 1}'
        data |= self._sweep(query)
        data |= self.artifacts.answer(query, variables, self.url)
        if "RunStoppedStatus" in query:
            data["project"] = {"run": {"stopped": self.stopped}}
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in variables["files"]]
            data["createRunFiles"] = {"runID": "UnVu", "uploadHeaders": [], "files": files}
        if "serverInfo" in query:
            data["serverInfo"] = {"features": [], "latestLocalVersionInfo": None}
        return {"data": data}

    def _sweep(self, query: str) -> dict[str, Any]:
        """Answer an agent: the sweep has the run `chosen`, and ends after it."""
        if "query SweepWithRuns" in query:
            return {
                "project": {"sweep": {"config": json.dumps({"command": self.sweep_command}), "runs": {"edges": []}}}
            }
        if "createAgent(" in query:
            return {"createAgent": {"agent": {"id": "agent"}}}
        if "agentHeartbeat(" in query:
            commands, self.commands = self.commands[:1], self.commands[1:]
            return {"agentHeartbeat": {"agent": {"id": "agent"}, "commands": json.dumps(commands)}}
        return {}

    def stream(self, request: dict[str, Any]) -> None:
        files = request.get("files") or {}
        self.labels |= set(re.findall(r"/l:([\w-]+)", str(files.get("wandb-events.jsonl"))))
        history = files.get("wandb-history.jsonl", {"content": [], "offset": 0})
        lines = [json.loads(line) for line in history["content"]]
        self.rows[history["offset"] : history["offset"] + len(lines)] = lines  # a request may be sent twice
        for line in files.get("wandb-summary.json", {}).get("content", []):
            self.summary = json.loads(line)
        if request.get("complete"):
            self.exit_codes.append(request.get("exitcode", 0))


@contextmanager
def serve(stub: Stub | None = None) -> Iterator[Stub]:
    """Serve a stub on loopback."""
    stub = stub or Stub()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            answer: dict[str, Any] = {}
            status = stub.status
            time.sleep(stub.delay)
            try:
                text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
                request = json.loads(text) if text else {}
            except ValueError:
                request, status = {}, 200 if "storage" in self.path else 404
            if status == 200 and "graphql" in self.path:
                answer = stub.graphql(request)
            elif status == 200 and "file_stream" in self.path:
                stub.stream(request)
                answer = {"exitcode": None, "limits": {}, "stopped": stub.stopped}
            payload = json.dumps(answer).encode()
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)
            except OSError:
                pass

        do_PUT = do_GET = do_POST

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: Any) -> None:  # a client that ends closes its connections
            pass

        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    stub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
