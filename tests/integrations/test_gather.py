"""Results of two ranks, with different widths or without tensors, are joined for one evaluation."""

import json
from pathlib import Path

import pytest
import torch

from support.metrics import measured
from support.processes import run_on_two
from trainbus.engine.distributed.ranks import Ranks

PROGRAM = Path(__file__).with_name("gather_program.py")


@pytest.fixture(scope="module")
def ends(tmp_path_factory):
    """What the metrics of each process were given: as tensors and as objects, whole and by batch."""
    folder = tmp_path_factory.mktemp("gathered")
    run_on_two(PROGRAM, folder, timeout=200)
    return [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(2)]


ROWS, LABELS = [float(row) for row in range(11)], [1 + row % 5 for row in range(11)]


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["tensors", "objects"])
def test_every_row_is_there_once_and_filled_up_to_the_widest(ends, kind):
    for of_rank in ends:
        [[rows, labels, shape]] = of_rank[f"{kind}-False"]["seen"]
        assert rows == ROWS
        assert labels == LABELS
        assert shape == [11, 5]
        # The last batch of the second process is filled up with row 0, and its loss is the mean of the two.
        assert of_rank[f"{kind}-False"]["loss"] == pytest.approx((sum(range(10)) + (10 + 0) / 2) / 11)


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["tensors", "objects"])
def test_batch_metrics_get_each_row_of_both_ranks_once(ends, kind):
    for of_rank in ends:
        seen = of_rank[f"{kind}-True"]["seen"]
        assert [row for rows, _, _ in seen for row in rows] == ROWS
        assert [label for _, labels, _ in seen for label in labels] == LABELS
        assert [len(rows) for rows, _, _ in seen] == [4, 4, 3]
        assert of_rank[f"{kind}-True"]["loss"] == of_rank[f"{kind}-False"]["loss"]


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
def test_a_loader_that_each_rank_reads_completely_is_evaluated_completely(ends):
    for of_rank in ends:
        assert of_rank["complete"]["labels"] == sorted(LABELS * 2)
        assert of_rank["complete"]["loss"] == pytest.approx(sum(ROWS) / 11)
        assert of_rank["shared"]["labels"] == sorted(LABELS)


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "size"), [("fewer", 5), ("more", 24)])
def test_rows_of_a_sampler_that_leaves_out_or_repeats_rows_count_as_often_as_it_yields_them(ends, kind, size):
    for of_rank in ends:
        assert of_rank[kind]["labels"] == [LABELS[row % 11] for row in range(size)]


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", ["list", "stream"])
def test_metrics_of_two_ranks_equal_those_of_one(ends, kind, tmp_path):
    alone = measured(tmp_path)[kind]
    del alone["eval_loss"]  # the padding row of the last batch is in its mean
    for of_rank in ends:
        found = of_rank["metrics"][kind]
        assert found.keys() - {"eval_loss"} == alone.keys()
        assert {name: found[name] for name in alone} == pytest.approx(alone, rel=1e-6)
        assert found["eval_accuracy"] == alone["eval_accuracy"]
        assert found["eval_PER_number"] == alone["eval_PER_number"] > 0


@pytest.mark.world_size(2)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", ["one", "many", "to host", "late labels"])
def test_results_that_are_gathered_together_equal_those_of_each_batch_with_fewer_collectives(ends, case):
    for of_rank in ends:
        (values, rows, collectives), (together, rows_together, fewer) = of_rank["together"][case]
        assert together == values
        assert rows_together == rows == len(values[0])
        if case == "many":
            assert fewer * 3 < collectives
    assert ends[0]["together"] == ends[1]["together"]


class Pair(Ranks):
    """The first of two processes, whose second one is made up."""

    def gather(self, tensor):
        if tensor.dtype == torch.int64 and tensor.numel() <= 2 and self.sizes:
            return torch.cat([tensor, self.sizes.pop()])
        other = torch.full_like(tensor, 7)
        return torch.cat([tensor, other])


def test_shorter_rows_are_padded():
    pair = Pair(0, 2)
    object.__setattr__(pair, "sizes", [torch.tensor([3, 4])])
    joined = pair.gather_padded(torch.ones(2, 3))
    assert joined.shape == (5, 4)
    assert joined[:2].tolist() == [[1, 1, 1, -100]] * 2
    assert joined[2:].tolist() == [[7] * 4] * 3


def test_one_process_keeps_its_predictions():
    alone = Ranks()
    tensor = torch.rand(3, 2)
    assert torch.equal(alone.gather_padded(tensor), tensor)
    assert torch.equal(alone.gather_padded(torch.tensor(2.0)), alone.gather(torch.tensor(2.0)))
    assert alone.gather_objects({"a": 1}) == [{"a": 1}]
