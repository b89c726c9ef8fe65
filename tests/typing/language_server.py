"""A client of a language server: it asks what an editor asks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any


class LanguageServer:
    """A language server on a folder, spoken to over its standard input and output."""

    def __init__(self, command: list[str], root: Path, settings: dict[str, Any]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=root)
        self.settings = settings
        self.serial = 0
        workspace = [{"uri": root.as_uri(), "name": root.name}]
        snippets = {"textDocument": {"completion": {"completionItem": {"snippetSupport": True}}}}
        capabilities = {**snippets, "workspace": {"configuration": True}}
        self.ask(
            "initialize",
            processId=os.getpid(),
            rootUri=root.as_uri(),
            capabilities=capabilities,
            workspaceFolders=workspace,
        )
        self._tell("initialized", {})

    def open(self, path: Path) -> None:
        """Open a file, as an editor does."""
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1, "text": path.read_text()}
        self._tell("textDocument/didOpen", {"textDocument": document})

    def complete(self, path: Path, line: int, column: int) -> dict[str, str]:
        """Return the inserted text of every completion at a position, by its label. Both count from 0."""
        found = self.ask("textDocument/completion", **self._at(path, line, column)) or []
        items = found["items"] if isinstance(found, dict) else found
        return {item["label"]: item.get("textEdit", {}).get("newText", item["label"]) for item in items}

    def hover(self, path: Path, line: int, column: int) -> str:
        """Return what an editor shows for the name at a position."""
        found = self.ask("textDocument/hover", **self._at(path, line, column))
        return str(found["contents"]["value"]) if found else ""

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return the result, and answer what the server asks meanwhile."""
        self.serial += 1
        self._send({"id": self.serial, "method": method, "params": params})
        while True:
            message = self._receive()
            if "method" not in message and message.get("id") == self.serial:
                assert "error" not in message, message["error"]
                return message["result"]
            if "method" in message and "id" in message:
                self._send({"id": message["id"], "result": self._answer(message)})

    def close(self) -> None:
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            stream.close()
        self.process.wait()

    def _answer(self, message: dict[str, Any]) -> Any:
        if message["method"] != "workspace/configuration":
            return None
        return [self.settings.get(item["section"], {}) for item in message["params"]["items"]]

    @staticmethod
    def _at(path: Path, line: int, column: int) -> dict[str, Any]:
        return {"textDocument": {"uri": path.as_uri()}, "position": {"line": line, "character": column}}

    def _tell(self, method: str, params: Any) -> None:
        self._send({"method": method, "params": params})

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.process.stdin.flush()

    def _receive(self) -> Any:
        length = 0
        while line := self.process.stdout.readline().strip():
            if line.lower().startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        assert length, "the language server has ended"
        return json.loads(self.process.stdout.read(length))
