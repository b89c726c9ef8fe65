"""Report runs to one SQLite database, which any tool can query while the run trains."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from trainbus.callbacks.base.row_tracker import Opening, Outcome
from trainbus.callbacks.base.service_tracker import ServiceSession, ServiceTracker

TABLES = """
create table if not exists runs (run text primary key, name text, config text, exit_code integer);
create table if not exists rows (run text, step integer, name text, value real, primary key (run, step, name));
create table if not exists facts (run text, name text, value text, primary key (run, name));
"""


class SqliteSession(ServiceSession):
    """An open run. The worker thread of the tracker owns the connection."""

    def __init__(self, run_id: str, path: Path) -> None:
        """Open the database and create its tables."""
        super().__init__(run_id)
        self.database = sqlite3.connect(path, timeout=30.0)
        self.database.executescript(TABLES)

    def log(self, values: Mapping[str, float], step: int) -> None:
        rows = [(self.run_id, step, name, value) for name, value in values.items()]
        with self.database:  # a transaction
            self.database.executemany("insert or replace into rows values (?, ?, ?, ?)", rows)

    def tell(self, name: str, value: Any) -> None:
        with self.database:
            text = json.dumps(value, default=str)
            self.database.execute("insert or replace into facts values (?, ?, ?)", (self.run_id, name, text))

    def close(self, outcome: Outcome) -> None:
        with self.database:
            self.database.execute("update runs set exit_code = ? where run = ?", (outcome.exit_code, self.run_id))
        self.database.close()


@dataclass
class TrackSqlite(ServiceTracker):
    """Writes the rows of a run to a SQLite database. A resumed training continues its run and repeats no row."""

    service: ClassVar[str] = "SQLite"

    path: str = "outputs/runs.sqlite"
    """The file of the database. Several runs may share it."""

    def open_session(self, opening: Opening, name: str | None, config: Mapping[str, Any]) -> ServiceSession:
        path = Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        session = SqliteSession(opening.run_id, path)
        row = (opening.run_id, name, json.dumps(dict(config), default=str), None)
        with session.database:
            session.database.execute("insert or ignore into runs values (?, ?, ?, ?)", row)
        return session
