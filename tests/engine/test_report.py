"""The report shows what the output folders of runs hold, in one HTML file that loads nothing."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.callbacks import Boom
from support.trainers import net_trainer
from trainbus import Callback, Report
from trainbus.engine.api.report.collect import collect, differing
from trainbus.engine.api.report.curves import Curve, kept
from trainbus.engine.api.report.page import render
from trainbus.engine.api.report.plots import labels, plot, short, ticks
from trainbus.engine.api.report.schema import report_data
from trainbus.engine.api.report.sections import _counted
from trainbus.engine.commands.main import main
from trainbus.events.errors import ArgumentError, MissingExtra, RankFailure

VOID = {"meta", "link", "br", "img", "input", "hr"}
EVIL = "<script>alert('x')</script>&\"</style>"


class Page(HTMLParser):
    """Checks that tags are balanced, and collects ids, references, headings and cells."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.references: list[str] = []
        self.texts: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        found = dict(attrs)
        self.tags.append((tag, found))
        self.ids += [found["id"]] if "id" in found else []
        self.references += [
            found[name] for name in ("href", "src", "srcset", "action", "data", "poster") if name in found
        ]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open[-1:] == [tag], self.open
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data.strip())


def script_data(text: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def check_page(text: str) -> Page:
    """Check that a page is balanced, loads nothing, and can be used with a keyboard and a screen reader."""
    page = Page(text)
    assert all(each.startswith(("#", "data:,")) for each in page.references), page.references
    assert not re.search(r"""url\(|@import|(src|href)\s*=\s*["']?(https?:)?//""", text)
    assert len(page.ids) == len(set(page.ids))
    assert {each[1:] for each in page.references if each.startswith("#")} <= set(page.ids)
    kinds = [tag for tag, _ in page.tags]
    assert kinds.count("h1") == kinds.count("main") == kinds.count("nav") == kinds.count("header") == 1
    for tag, attrs in page.tags:
        if tag == "svg":
            assert attrs.get("aria-hidden") or attrs.get("aria-label") or attrs.get("aria-labelledby"), attrs
        if tag == "th":
            assert attrs.get("scope") in ("col", "row")
        if tag == "button":
            assert attrs.get("type") == "button"
            assert "aria-pressed" in attrs
    assert script_data(text) is not None
    return page


class Crash(Callback):
    """Raises in step 7."""

    def on_step_begin(self, state: Any) -> None:
        if state.global_step == 6:
            raise Boom("boom")


def train(folder: Path, *callbacks: Callback, **args: Any) -> Any:
    settings = {"max_steps": 12, "logging_steps": 2, "eval_strategy": "steps", "eval_steps": 4, "save_steps": 4}
    settings |= {"logging_strategy": "steps", "save_strategy": "steps", "load_best_model_at_end": True}
    trainer = net_trainer(folder, *callbacks, **{**settings, **args})
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded run, a run with another learning rate, and one that crashed in step 7."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "one", Report(), record=True)
    train(folder / "two", learning_rate=0.01)
    with pytest.raises(Boom, match="boom"):
        train(folder / "crashed", Report(), Crash(), record=True)
    return folder


def test_the_callback_writes_the_page_at_the_end(runs: Path) -> None:
    text = (runs / "one" / "report.html").read_text(encoding="utf-8")
    page, run = check_page(text), collect(runs / "one")
    assert (run.status, run.step, run.max_steps) == ("done", 12, 12)
    history = json.loads((runs / "one" / "checkpoint-12" / "trainer_state.json").read_text())["log_history"]
    assert run.curves["loss"].values == [row["loss"] for row in history if "loss" in row]
    assert [each["step"] for each in run.evaluations] == [4, 8, 12]
    assert script_data(text)["loss"][0]["steps"] == [2, 4, 6, 8, 10, 12]
    assert script_data(text)["loss of every step"][0]["steps"] == list(range(1, 13))
    assert all(seconds is not None for seconds in run.curves["loss"].seconds)
    assert {"learning_rate", "grad_norm", "best, newest", "Decisions with author and reason"} & set(page.texts)
    assert {"newest", "best, newest"} & set(page.texts)  # the word of `trainbus checkpoints`
    assert "best, last" not in page.texts
    pins = {each["step"]: each["pins"] for each in run.checkpoints}
    assert "newest" in pins[12]
    assert sum("best" in each for each in pins.values()) == 1
    assert {each["what"] for each in run.decisions} >= {"evaluate", "save", "stop"}
    assert run.callbacks["on_evaluate_due"] == {"Evaluate": "PREPARE"} or "Evaluate" in run.callbacks["on_evaluate_due"]
    assert "python" in page.texts
    assert "Report" in text


def test_a_run_without_a_recording_has_curves_from_its_checkpoints(runs: Path) -> None:
    run = collect(runs / "two")
    assert run.curves["loss"].steps == [2, 4, 6, 8, 10, 12]
    assert run.steps == {}
    assert run.curves["loss"].seconds == sorted(run.curves["loss"].seconds)  # type: ignore[type-var]
    assert any("interpolated" in note for note in run.notes)
    assert [(each["step"], each["what"]) for each in run.decisions][:2] == [(4, "evaluate"), (4, "save")]
    assert run.samples_per_step == collect(runs / "one").samples_per_step == 4


def test_a_crashed_run_has_its_page_and_its_error(runs: Path) -> None:
    text = (runs / "crashed" / "report.html").read_text(encoding="utf-8")
    page, run = check_page(text), collect(runs / "crashed")
    assert (run.status, run.step) == ("failed", 6)
    assert "boom" in run.reason
    assert any("boom" in each for each in page.texts)
    assert run.curves["loss"].steps == [2, 4, 6]


@pytest.mark.parametrize(
    ("rank", "error", "writes"),
    [
        (0, None, True),
        (0, RankFailure("rank 1 failed"), True),
        (1, None, False),
        (1, ValueError("bad"), True),
        (1, RankFailure("rank 2 failed"), False),
    ],
)
def test_the_rank_that_fails_first_and_rank_0_write_the_page(
    rank: int, error: Exception | None, writes: bool, tmp_path: Path
) -> None:
    run = net_trainer(tmp_path).run
    run.state.is_world_process_zero = rank == 0
    with mock.patch.object(type(run), "mode", "train"), mock.patch.object(type(run), "exception", error, create=True):
        Report().on_close(run)
    assert (tmp_path / "report.html").exists() == writes


def test_a_killed_run_with_a_torn_recording_is_shown_up_to_its_last_line(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs / "one", tmp_path / "killed")
    recording = tmp_path / "killed" / "events.jsonl"
    lines = recording.read_bytes().split(b"\n")
    cut = next(index for index, line in enumerate(lines) if b'"on_log"' in line and b'"s":6' in line)
    recording.write_bytes(b"\n".join(lines[: cut + 1]) + b"\n" + b'{"e":"on_lo')
    for checkpoint in (tmp_path / "killed").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    status = json.loads((tmp_path / "killed" / "run_status.json").read_text())
    (tmp_path / "killed" / "run_status.json").write_text(json.dumps({**status, "status": "running", "pid": 2**22 + 1}))
    run = collect(tmp_path / "killed")
    assert (run.status, run.curves["loss"].steps) == ("killed", [2, 4, 6])
    check_page(render([run]))


def test_a_run_in_progress_is_shown(tmp_path: Path) -> None:
    pages = []

    class Look(Callback):
        def on_step_end(self, state: Any) -> None:
            if state.global_step == 11:
                pages.append(render([collect(tmp_path)]))

    train(tmp_path, Look(), async_save=False)
    check_page(pages[0])
    assert "running" in pages[0]
    assert script_data(pages[0])["loss"][0]["steps"] == [2, 4, 6, 8]


def test_two_runs_show_only_the_arguments_that_differ(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert differing([collect(runs / "one"), collect(runs / "two")]) == ["learning_rate", "record"]
    out = runs / "both.html"
    assert main(["report", str(runs / "one"), str(runs / "two"), "-o", str(out)]) == 0
    text = out.read_text(encoding="utf-8")
    check_page(text)
    marked = re.findall(r'<tr class="differs"><th scope="row">(.*?)</th>', text)
    assert marked == ["learning_rate", "record"]
    assert [line["name"] for line in script_data(text)["loss"]] == ["one", "two"]


def test_twenty_runs_stay_small_and_differ_in_colour_or_dash(runs: Path, tmp_path: Path) -> None:
    found = [collect(shutil.copytree(runs / "one", tmp_path / f"run-{index}")) for index in range(20)]
    text = render(found)
    check_page(text)
    assert len(text) < 1_000_000
    figure = text.partition('<g class="lines">')[2].partition("</g>")[0]
    styles = re.findall(r'<path (class="line c\d"(?: stroke-dasharray="[\d ]+")?)', figure)
    assert len(styles) == len(set(styles)) == 20


def test_everything_is_escaped(tmp_path: Path) -> None:
    trainer = train(tmp_path / "run", run_name=EVIL, record=True, max_steps=4)
    trainer.state.log_history.append({"step": 4, "eval_" + EVIL: 1.0, EVIL: 2.0, "epoch": 1.0})
    trainer.state.log_history.append({"step": 5, "eval_" + EVIL: 1.5, EVIL: 3.0, "epoch": 1.0})
    (tmp_path / "run" / "events.jsonl").unlink()
    trainer.save_state()
    status = json.loads((tmp_path / "run" / "run_status.json").read_text())
    (tmp_path / "run" / "run_status.json").write_text(
        json.dumps({**status, "reason": EVIL, "status": EVIL, "host": EVIL})
    )
    run = collect(tmp_path / "run")
    assert run.name == EVIL
    assert EVIL in run.curves
    text = render([run, run], title=EVIL)
    check_page(text)
    assert "<script>alert" not in text
    assert text.count("<script") == text.count("</script>") == 2
    assert text.count("</style>") == 1
    assert EVIL in script_data(text)


def test_a_hundred_thousand_recorded_steps_are_less_than_a_megabyte(tmp_path: Path) -> None:
    head = {"recording": 1, "run": "r", "rank": 0, "step": 0, "time": 0.0, "args": {"output_dir": "x"}, "handlers": {}}
    lines = [json.dumps(head), json.dumps({"pattern": 0, "events": ["on_step_begin", "on_gradients", "on_step_end"]})]
    for step in range(1, 100_001):
        loss = 1000.0 if step == 54_321 else 1.0 / step + (step % 7) * 0.01
        lines.append(
            f'{{"p":0,"s":{step},"t":{step / 100},"d":[1,2],"loss":[{loss}],"norm":{loss},"lr":{1e-3 / step}}}'
        )
        if step % 10 == 0:
            logs = {"loss": loss, "grad_norm": loss, "learning_rate": 1e-3 / step}
            lines.append(json.dumps({"e": "on_log", "s": step, "t": step / 100, "in": "on_log_due", "logs": logs}))
            lines.append(json.dumps({"e": "on_evaluate_begin", "s": step, "t": step / 100}))
            logs = {"eval_loss": loss, "eval_accuracy": 0.5}
            lines.append(json.dumps({"e": "on_log", "s": step, "t": step / 100, "in": "on_evaluate_due", "logs": logs}))
    (tmp_path / "events.jsonl").write_text("\n".join(lines) + "\n")
    began = time.perf_counter()
    run = collect(tmp_path)
    text = render([run])
    assert time.perf_counter() - began < 60
    check_page(text)
    assert len(text) < 1_000_000
    drawn = script_data(text)["loss of every step"][0]
    assert max(drawn["values"]) == 1000.0
    assert len(drawn["steps"]) <= 1300
    assert drawn["steps"][-1] == 100_000
    assert "least and its largest value" in text.replace("its least", "least")
    assert len(json.dumps(report_data([run]))) < 2_000_000


def test_values_that_are_not_finite_break_the_line_and_are_named(tmp_path: Path) -> None:
    history = [
        {"step": step, "epoch": 1.0, "loss": value} for step, value in enumerate([1.0, 0.5, math.nan, math.inf, 2.0])
    ]
    (tmp_path / "trainer_state.json").write_text(json.dumps({"global_step": 4, "log_history": history}))
    text = render([collect(tmp_path)])
    check_page(text)
    assert "2 values are not finite, the first at step 2" in text
    assert script_data(text)["loss"][0]["values"] == [1.0, 0.5, "NaN", "Infinity", 2.0]
    json.dumps(report_data([collect(tmp_path)]), allow_nan=False)


def test_costs_are_shown_where_the_status_has_them(runs: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(runs / "two", tmp_path / "run")
    status = json.loads((folder / "run_status.json").read_text())
    costs = {
        "parts": [{"part": "forward", "seconds": 3.0}, {"part": "data", "seconds": 1.0}, "broken", {"part": 3}],
        "callbacks": [{"callback": "Slow", "event": "on_log", "seconds": 0.5, "calls": 4}],
        "verdict": "The model limits the speed.",
    }
    (folder / "run_status.json").write_text(json.dumps({**status, "costs": costs}))
    page = check_page(render([collect(folder)]))
    assert {"forward", "75.0%", "Slow", "The model limits the speed."} <= set(page.texts)
    for nothing in (None, [], {}, {"parts": 3}, {"parts": []}):
        (folder / "run_status.json").write_text(json.dumps({**status, "costs": nothing}))
        assert "Time by part" not in render([collect(folder)])


def test_a_folder_of_transformers_is_shown(tmp_path: Path) -> None:
    import transformers

    state = transformers.TrainerState(global_step=20, max_steps=20, epoch=2.0, best_metric=0.25, train_batch_size=4)
    state.log_history = [
        {"epoch": 1.0, "step": 10, "loss": 0.5, "grad_norm": 1.0, "learning_rate": 1e-3},
        {"epoch": 1.0, "step": 10, "eval_loss": 0.3},
        {"epoch": 2.0, "step": 20, "loss": 0.4, "grad_norm": 0.9, "learning_rate": 0.0},
        {"epoch": 2.0, "step": 20, "eval_loss": 0.25},
    ]
    (tmp_path / "checkpoint-20").mkdir()
    state.save_to_json(str(tmp_path / "checkpoint-20" / "trainer_state.json"))
    for folder in (tmp_path, tmp_path / "checkpoint-20"):
        run = collect(folder)
        assert (run.step, run.curves["loss"].values, run.arguments) == (20, [0.5, 0.4], {})
        assert [each["metrics"]["eval_loss"] for each in run.evaluations] == [0.3, 0.25]
        assert "The arguments are not known: no checkpoint and no recording holds them." in run.notes
        check_page(render([run]))


def test_json_has_the_documented_keys(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs / "one"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["report"], data["differing"], len(data["runs"])) == (1, [], 1)
    page = (Path(__file__).resolve().parents[2] / "docs" / "report.md").read_text(encoding="utf-8")
    assert set(data["runs"][0]) == set(re.findall(r"^\| `(\w+)` \|", page.partition("## JSON")[2], re.MULTILINE))
    assert set(data["runs"][0]["curves"]["loss"]) == {"logged", "steps", "seconds", "values"}


def test_png_needs_matplotlib_and_says_so(
    runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "curves.png"
    assert main(["report", str(runs / "one"), str(runs / "two"), "--png", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG\r\n")
    assert out.stat().st_size > 10_000
    for other in (["-o", str(tmp_path / "both.html")], ["--json"]):
        assert main(["report", str(runs / "one"), "--png", str(out), *other]) == 2
        assert "instead of" in capsys.readouterr().err
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.backends.backend_agg", None)
    from trainbus.engine.api.report.images import png_of

    with pytest.raises(MissingExtra, match=r"trainbus\[report\]"):
        png_of([collect(runs / "one")])


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ArgumentError, match="nothing of a run"):
        collect(tmp_path)
    assert main(["report", str(tmp_path / "missing")]) == 2
    assert "There is no folder" in capsys.readouterr().err
    assert not (tmp_path / "missing").exists()


@pytest.mark.parametrize(
    ("shown", "there", "caption"),
    [
        (1, 1, "1 evaluation"),
        (40, 40, "40 evaluations"),
        (40, 60, "The last 40 of 60 evaluations"),
        (41, 60, "The last 40 of 60 evaluations, and 1 earlier"),
    ],
)
def test_the_caption_of_a_table_counts_its_rows(shown: int, there: int, caption: str) -> None:
    assert _counted(shown, there, "evaluations") == caption


@pytest.mark.parametrize("count", [0, 1, 2, 999, 10_000])
def test_a_reduced_curve_keeps_ends_and_extremes(count: int) -> None:
    values = [math.sin(index * 0.7) * index for index in range(count)]
    if count > 100:
        values[77] = math.nan
    chosen = kept(values, 100)
    assert chosen == sorted(set(chosen))
    assert len(chosen) <= min(count, 103)
    finite = [value for value in values if math.isfinite(value)]
    if finite:
        left = [values[index] for index in chosen if math.isfinite(values[index])]
        assert (min(left), max(left)) == (min(finite), max(finite))
        assert chosen[0] == 0
        assert chosen[-1] == count - 1
    assert count <= 100 or 77 in chosen
    curve = Curve(list(range(count)), [None] * count, values)
    assert len(curve.reduced(100).values) == len(chosen)


def test_ticks_are_round_numbers_inside_the_limits() -> None:
    assert ticks(0, 400) == [0, 100, 200, 300, 400]
    assert ticks(1.0, 1.0) == [1.0]
    assert all(0.011 <= each <= 0.0975 for each in ticks(0.011, 0.0975))
    assert [short(each) for each in (0, 0.05, 0.00975, 1200, 3e6, -2.5e-5)] == [
        "0",
        "0.05",
        "9.75e-3",
        "1.2k",
        "3M",
        "-2.5e-5",
    ]


@pytest.mark.parametrize(
    ("low", "high"), [(0.7418, 0.7434), (0.1, 0.9), (1e5, 1e5 + 3), (2.7e-5, 2.71e-5), (-1e-7, 1e-7), (999.4, 999.9)]
)
def test_each_tick_has_its_own_text_with_room_for_it(low: float, high: float) -> None:
    values = ticks(low, high)
    texts = labels(values)
    assert len(set(texts)) == len(values) > 2
    sizes = {"k": 1e3, "M": 1e6}
    read = [float(text.rstrip("kM")) * sizes.get(text[-1], 1) for text in texts]
    assert read == pytest.approx(values, rel=1e-9, abs=1e-20)
    text = plot("loss", "", [(0, [(0.0, low), (10.0, high)])], "c")
    places = [int(place) for place in re.findall(r'<text x="(\d+)" y="[^"]*" text-anchor="end"', text)]
    assert len(places) == len(values)
    assert all(place >= 9 * len(name) for place, name in zip(places, texts))  # in a page for phones, at most 9 each


PROBE = """<script>
window.found = {errors: [], refused: []};
addEventListener("error", (event) => found.errors.push(event.message));
addEventListener("securitypolicyviolation", (event) => found.refused.push(event.blockedURI));
</script>"""
USE = """<script>
const path = () => document.querySelector("figure .lines path").getAttribute("d");
const click = (name) => { document.querySelector(`[data-axis=${name}], [data-scale=${name}]`).click(); return path(); };
found.paths = [path(), click("seconds"), click("samples"), click("log"), click("linear")];
const box = document.querySelector(".plot");
box.dispatchEvent(new KeyboardEvent("keydown", {key: "End", bubbles: true}));
found.read = document.querySelector("output").textContent;
found.loaded = performance.getEntriesByType("resource").map((each) => each.name);
found.wide = document.documentElement.scrollWidth <= document.documentElement.clientWidth;
found.tools = !document.querySelector(".tools").hidden;
document.body.dataset.found = JSON.stringify(found);
</script>"""


@pytest.mark.slow
@pytest.mark.parametrize("width", [390, 1280])
def test_chromium_draws_the_page_without_an_error_or_a_request(runs: Path, tmp_path: Path, width: int) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is installed")
    text = render([collect(runs / "one"), collect(runs / "two")])
    drawn = re.search(r'<g class="lines"><path [^>]* d="([^"]*)"', text)
    text = text.replace("<style>", f"{PROBE}<style>", 1).replace("</body>", f"{USE}</body>")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    flags = [
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}/p",
    ]
    command = [browser, *flags, f"--window-size={width},900", "--dump-dom", f"file://{tmp_path}/page.html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'data-found="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    values = json.loads(found[1].replace("&quot;", '"').replace("&amp;", "&"))
    assert (values["errors"], values["refused"], values["loaded"]) == ([], [], [])
    assert "CONSOLE" not in done.stderr
    steps, seconds, samples, log, linear = values["paths"]
    assert drawn is not None
    assert steps == drawn[1]
    assert len({steps, seconds, log}) == 3
    assert linear == samples
    assert values["read"].startswith("samples ")
    assert values["wide"]
    assert values["tools"]
