"""StopIteration of a collator does not end the epoch of a stream without a message."""

from __future__ import annotations

from typing import Any

import pytest

from support.data import Stream, points
from support.trainers import regression_trainer
from trainbus import default_data_collator
from trainbus.events import DataError


class EndsAtCall:
    """A collator that raises StopIteration in its third call."""

    calls = 0

    def __call__(self, features: list[Any]) -> Any:
        self.calls += 1
        return next(iter(())) if self.calls == 3 else default_data_collator(features)


@pytest.mark.parametrize("workers", [0, 1])
def test_stop_iteration_of_a_collator_of_a_stream_is_an_error(workers, tmp_path):
    args = {"max_steps": 5, "dataloader_num_workers": workers}
    run = regression_trainer(tmp_path, train_dataset=Stream(points(40)), data_collator=EndsAtCall(), args=args)
    with pytest.raises(DataError, match="The collator raised StopIteration"):
        run.train()


def test_stop_iteration_of_a_collator_in_an_evaluation_of_a_stream_is_an_error(tmp_path):
    run = regression_trainer(tmp_path, eval_dataset=Stream(points(40)), data_collator=EndsAtCall())
    with pytest.raises(DataError, match="The collator raised StopIteration"):
        run.evaluate()
