"""Goodput over restarts: a real run that is killed and resumed, and the rules with numbers."""

from __future__ import annotations

import json
import re
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from goodput_program import ROW_SECONDS

from support.processes import run_program, server
from support.trainers import net_trainer
from trainbus import MeasureGoodput
from trainbus.engine.api.costs.goodput import NAME, PARTS, described, goodput_of, read_goodput
from trainbus.engine.commands.main import main
from trainbus.events import ArgumentError

PROGRAM = Path(__file__).with_name("goodput_program.py")


def test_a_killed_and_resumed_run_counts_its_lost_steps_and_all_of_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server()  # the time of its start is not the time of a session
    walls = []
    for how, code in (("kill", -9), ("finish", 0)):
        began = time.time()
        run_program(PROGRAM, tmp_path, how, timeout=60, code=code)
        walls.append(float((tmp_path / "ended.txt").read_text()) - began)
    found = read_goodput(tmp_path)
    assert found is not None
    values = found.to_dict()
    killed, finished = values["sessions"]
    assert (killed["first_step"], killed["last_step"], killed["lost_steps"]) == (0, 26, 6)
    assert (finished["first_step"], finished["last_step"], finished["lost_steps"]) == (20, 40, 0)
    assert (killed["ended"], finished["ended"]) == ("", "ended")
    for row, wall in zip((killed, finished), walls):
        assert sum(row[part] for part in PARTS) == pytest.approx(row["seconds"])
        # Up to the last heartbeat, and without the start of the interpreter.
        assert wall - 2.0 < row["seconds"] < wall + 0.05
        assert all(row[part] >= 0 for part in PARTS)
    assert 1 - 0.1 < killed["lost"] < 3.5, "6 steps and a sleep of 2 seconds, up to the last heartbeat"
    for row, steps in ((killed, 20), (finished, 20)):
        assert row["waiting"] >= 0.95 * steps * 4 * ROW_SECONDS, "estimated from one step in 7"
        assert row["productive"] >= steps * 0.01
        assert row["evaluating"] >= 2 * 0.05
        assert row["saving"] > 0
        assert row["start_up"] > 0
    assert values["goodput"] == pytest.approx((killed["productive"] + finished["productive"]) / values["seconds"])
    assert main(["status", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["goodput"] == values
    assert main(["status", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert main(["report", str(tmp_path)]) == 0
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    cells = re.findall(r"<t[dh][^>]*>([^<]*)</t", page[page.index('<section id="goodput"') :])
    assert cells[cells.index("0 to 26") + 8 :][:2] == ["6", "killed"]
    assert re.search(r"goodput +\d+% of .* in 2 sessions; start-up .*waiting .*lost .* \(6 steps\)", said)


def start(session: str, step: int, began: float, resumes: bool = True) -> dict[str, Any]:
    return {"session": session, "what": "start", "step": step, "seconds": 2.0, "began": began, "resumes": resumes}


def moment(session: str, what: str, step: int, seconds: float, **more: Any) -> dict[str, Any]:
    parts = {} if what == "beat" else {"evaluating": 1.0, "saving": 0.5, "waiting": 2.0}
    return {"session": session, "what": what, "step": step, "seconds": seconds, **parts, **more}


def test_the_parts_of_a_session_add_up() -> None:
    records = [start("a", 0, 100.0, False), moment("a", "save", 10, 12.0), moment("a", "end", 10, 13.0)]
    [row] = goodput_of(records).to_dict()["sessions"]
    assert row["productive"] == 13 - 2 - 3.5
    assert {name: row[name] for name in PARTS[1:]} == {
        **{"start_up": 2, "evaluating": 1, "saving": 0.5, "waiting": 2, "lost": 0}
    }


def test_an_evaluation_before_the_first_step_is_not_start_up(tmp_path: Path) -> None:
    trainer = net_trainer(tmp_path, eval_on_start=True, eval_strategy="epoch", save_steps=3, max_steps=3)
    trainer.on("on_evaluate_begin", lambda: time.sleep(0.3), once=True)
    trainer.train()
    found = read_goodput(tmp_path)
    assert found is not None
    [row] = found.to_dict()["sessions"]
    assert 0.3 <= row["evaluating"] < row["seconds"]
    assert sum(row[part] for part in PARTS) == pytest.approx(row["seconds"])
    records = [{**start("a", 0, 100.0, False), "evaluating": 0.5}, moment("a", "end", 10, 13.0)]
    [row] = goodput_of(records).to_dict()["sessions"]
    assert (row["start_up"], row["evaluating"], row["productive"]) == (1.5, 1.0, 13 - 1.5 - 3.5)


def test_work_after_the_checkpoint_is_lost_also_over_several_sessions() -> None:
    first = [start("a", 0, 100.0, False), moment("a", "save", 10, 12.0), moment("a", "beat", 17, 19.0)]
    second = [start("b", 10, 130.0), moment("b", "beat", 14, 8.0)]
    third = [start("c", 10, 150.0), moment("c", "save", 20, 12.0), moment("c", "end", 20, 12.0)]
    values = goodput_of([*first, *second, *third]).to_dict()
    assert [row["lost_steps"] for row in values["sessions"]] == [7, 4, 0]
    assert [row["lost"] for row in values["sessions"]] == [7.0, 6.0, 0.0]
    assert values["sessions"][1]["start_up"] == 2.0
    assert values["between"] == (130 - 119) + (150 - 138)
    assert values["seconds"] == 19 + 8 + 12
    older = goodput_of([*first, *second, *third, start("d", 5, 200.0)]).to_dict()
    assert [row["lost_steps"] for row in older["sessions"]] == [12, 4, 10, 0]
    assert sum(older[part] for part in PARTS) == older["seconds"]
    assert "lost" in described(older)


def test_a_run_that_is_killed_before_its_first_checkpoint_loses_all_its_work() -> None:
    first = [start("a", 0, 100.0, False), moment("a", "beat", 9, 12.0)]
    values = goodput_of([*first, start("b", 0, 120.0, resumes=True)]).to_dict()
    assert (values["lost_steps"], values["lost"]) == (9, 10.0)
    assert len(goodput_of([*first, start("b", 0, 120.0, resumes=False)]).sessions) == 1, "a new run"
    ended = [*first, moment("a", "end", 9, 12.0)]
    assert len(goodput_of([*ended, start("b", 0, 120.0, resumes=True)]).sessions) == 1, "the first run was over"


def test_a_cut_line_and_foreign_records_are_left_out(tmp_path: Path) -> None:
    assert read_goodput(tmp_path) is None
    lines = [json.dumps(start("a", 0, 100.0, False)), '{"session": "a", "wh', "[]", '{"what": "save"}', "\x00"]
    (tmp_path / NAME).write_text("\n".join(lines))
    found = read_goodput(tmp_path)
    assert found is not None
    assert found.to_dict()["seconds"] == 2.0
    net_trainer(tmp_path, save_steps=3).train()
    found = read_goodput(tmp_path)
    assert found is not None
    assert (found.sessions[0].steps(), found.sessions[0].ended) == ((0, 6, 6), "ended"), "a cut line swallows no record"


def test_a_failed_run_ends_its_record_and_its_thread(tmp_path: Path) -> None:
    built = net_trainer(tmp_path, MeasureGoodput(0.05), save_steps=2)

    def fail() -> None:
        time.sleep(0.3)
        raise RuntimeError("planned")

    built.on("on_step_end", fail, once=3, id="Fail")
    with pytest.raises(RuntimeError, match="planned"):
        built.train()
    whats = [json.loads(line)["what"] for line in (tmp_path / NAME).read_text().split("\n") if line]
    assert whats[0] == "start"
    assert "beat" in whats
    assert whats[-1] == "end"
    found = read_goodput(tmp_path)
    assert found is not None
    assert found.sessions[0].ended == "failed"
    assert not [thread for thread in threading.enumerate() if thread.name == "trainbus-goodput"]


def test_a_run_that_saves_nothing_writes_no_file(tmp_path: Path) -> None:
    net_trainer(tmp_path).train()
    assert not (tmp_path / NAME).exists()


def test_a_time_that_is_not_above_zero_is_refused() -> None:
    with pytest.raises(ArgumentError, match="above 0"):
        MeasureGoodput(0)
