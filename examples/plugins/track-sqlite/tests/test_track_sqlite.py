import sqlite3

from track_sqlite import TrackSqlite

from trainbus.testing import parametrize_with_checks


def tracker(folder):
    return TrackSqlite(path=str(folder / "runs.sqlite"))


@parametrize_with_checks([tracker], budget=5000)
def test_conforms(check):
    check()


def query(folder, statement):
    database = sqlite3.connect(folder / "runs.sqlite")
    try:
        return database.execute(statement).fetchall()
    finally:
        database.close()


def test_a_run_is_reported(tiny_run, tmp_path):
    run = tiny_run(tracker(tmp_path), run_name="demo")
    run.trainer.end()
    losses = dict(query(tmp_path, "select step, value from rows where name = 'train/loss'"))
    assert losses == {row["step"]: row["loss"] for row in run.logs if "loss" in row}
    assert query(tmp_path, "select name, exit_code from runs") == [("demo", 0)]


def test_a_resumed_run_is_the_same_run(tiny_run, tmp_path):
    first = tiny_run(tracker(tmp_path), max_steps=4)
    first.trainer.end()
    tiny_run(tracker(tmp_path), folder=first.folder, resume_from_checkpoint=True).trainer.end()
    assert len(query(tmp_path, "select run from runs")) == 1
    steps = query(tmp_path, "select step from rows where name = 'train/loss' order by step")
    assert [step for (step,) in steps] == [1, 2, 3, 4, 5, 6]
