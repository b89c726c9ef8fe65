"""Readers of what trackers wrote: the rows of a run, as step -> columns, from the files of each service."""

from __future__ import annotations

import csv
import json
import re
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = tuple[int, dict[str, float]]


def rows_of(points: Iterable[tuple[int, str, float]]) -> list[Row]:
    """Return points as rows. A point that a step has twice begins another row, so that duplicates are seen."""
    rows: list[Row] = []
    last: dict[int, dict[str, float]] = {}
    for step, name, value in points:
        if step not in last or name in last[step]:
            last[step] = {}
            rows.append((step, last[step]))
        last[step][name] = value
    return sorted(rows, key=lambda row: row[0])


def jsonl(folder: Path) -> list[Row]:
    rows = [json.loads(line) for line in (folder / "out" / "metrics.jsonl").read_text().splitlines()]
    return [(row["train/global_step"], row) for row in rows]


def table(folder: Path) -> list[Row]:
    with (folder / "out" / "metrics.csv").open(newline="") as file:
        rows = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(file)]
    return [(int(row["train/global_step"]), row) for row in rows]


def tensorboard(folder: Path) -> list[Row]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "out" / "runs"), size_guidance={"scalars": 0}).Reload()
    names = [name for name in events.Tags()["scalars"] if name.removeprefix("train/") not in TOTALS]
    return rows_of((event.step, name, event.value) for name in names for event in events.Scalars(name))


TOTALS = ("train_runtime", "train_samples_per_second", "train_steps_per_second", "train_loss", "total_flos")


def mlflow(folder: Path) -> list[Row]:
    def points() -> Iterator[tuple[int, str, float]]:
        [run] = [path for path in (folder / "mlruns").glob("*/*") if (path / "metrics").is_dir()]
        for file in (run / "metrics").iterdir():
            name = file.name.replace("_", "/", 1) if file.name.startswith("eval_") else f"train/{file.name}"
            for line in file.read_text().splitlines():
                _, value, step = line.split()[:3]
                if file.name not in TOTALS:
                    yield int(step), name, float(value)

    return rows_of(points())


def trackio(folder: Path, project: str = "demo") -> list[Row]:
    from trackio.sqlite_storage import SQLiteStorage

    [run] = SQLiteStorage.get_runs(project)
    return [(entry["step"], entry) for entry in SQLiteStorage.get_logs(project, run)]


def comet(folder: Path) -> list[Row]:
    def points() -> Iterator[tuple[int, str, float]]:
        keys = set()
        for path in sorted(folder.glob("*.zip"), key=lambda path: path.stat().st_mtime):
            with zipfile.ZipFile(path) as archive:
                keys.add(json.loads(archive.read("experiment.json"))["offline_id"])
                messages = map(json.loads, archive.read("messages.json").decode().splitlines())
                found = [message["payload"]["metric"] for message in messages if message["type"] == "metric_msg"]
            yield from (
                (metric["step"], metric["metricName"], metric["metricValue"]) for metric in found if metric["step"]
            )
        assert len(keys) == 1

    return rows_of(points())


def neptune(folder: Path) -> list[Row]:
    def points() -> Iterator[tuple[int, str, float]]:
        for path in sorted(folder.glob(".neptune/offline/*/data-1.log"), key=lambda path: path.stat().st_mtime):
            operations = [json.loads(line)["obj"] for line in path.read_text().splitlines()]
            for operation in operations:
                if operation["type"] == "LogFloats" and operation["path"][0] in ("train", "eval"):
                    yield from ((v["step"], "/".join(operation["path"]), v["value"]) for v in operation["values"])

    return rows_of((int(step), name, value) for step, name, value in points())


def clearml(folder: Path) -> list[Row]:
    def points() -> Iterator[tuple[int, str, float]]:
        for path in sorted(folder.glob("offline/*/metrics.jsonl"), key=lambda path: path.stat().st_mtime):
            for line in path.read_text().splitlines():
                for event in json.loads(line):
                    if event["type"] == "training_stats_scalar" and event["variant"] in ("train", "eval"):
                        yield event["iter"], f"{event['variant']}/{event['metric']}", event["value"]

    return rows_of(points())


def swanlab(folder: Path) -> list[Row]:
    def points() -> Iterator[tuple[int, str, float]]:
        for path in sorted(folder.glob("swanlog/*/backup.swanlab")):
            text = path.read_bytes().decode(errors="ignore")
            for found in re.findall(r'\{"model_type": "Scalar".*?\}\}\}|\{"model_type": "Scalar".*?\}\}', text):
                data = json.loads(found)["data"]
                yield int(data["step"]), data["key"], float(data["metric"]["data"])
        for path in sorted(folder.glob("swanlog/*/run-*.swanlab")):  # SwanLab 0.10
            yield from swanlab_records(path)

    return rows_of(points())


def swanlab_records(path: Path) -> Iterator[tuple[int, str, float]]:
    from swanlab.proto.swanlab.record.v1.record_pb2 import Record
    from swanlab.sdk.internal.core_python.store import DataStoreReader

    reader = DataStoreReader()
    reader.open(path)
    try:
        for data in reader:
            record = Record()
            record.ParseFromString(data)
            if record.HasField("scalar") and "/" in record.scalar.key:
                yield record.scalar.step, record.scalar.key, record.scalar.value.number
    finally:
        reader.close()


def wandb(folder: Path) -> list[Row]:
    from wandb_files import segments

    rows = [row for segment in segments(folder) for row in segment.rows]
    # The client writes an empty row for a session without rows.
    return [(row["train/global_step"], row) for row in rows if row.keys() - {"_step", "_timestamp", "_runtime"}]


def by_step(rows: list[Row]) -> dict[int, list[dict[str, Any]]]:
    """Return step -> its rows."""
    found: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for step, row in rows:
        found[step].append(row)
    return dict(found)
