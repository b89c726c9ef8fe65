"""The Trainer's methods that find the datasets of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...events.errors import DataError, closest
from ..arguments import IntervalStrategy
from ..data.build import is_iterable
from ..data.sources import as_dataset, check_table_file, is_table_file, problem_of
from .dataloaders import DataLoaderMethods
from .overrides import is_overridden


class EvalDatasetMethods(DataLoaderMethods):
    """Methods that find the datasets of an evaluation, and check them before the evaluation is due."""

    def _known_eval_datasets(self) -> dict[str, Any]:
        """Return the map-style eval datasets by name. The ranks compare the lengths of these datasets.

        The name of a single dataset is an empty text. The dict is empty if the run does not evaluate, or if a subclass
        overrides `get_eval_dataloader`, which may load other data.
        """
        overridden = is_overridden(self, "get_eval_dataloader")
        if self.eval_dataset is None or overridden or self.args.eval_strategy == IntervalStrategy.NO:
            return {}
        given = self.eval_dataset if isinstance(self.eval_dataset, dict) else {"": self.eval_dataset}
        return {name: dataset for name, dataset in given.items() if not is_iterable(dataset)}

    def _eval_datasets(self, wanted: Any) -> dict[str, Any]:
        """Return for each dataset of an evaluation: its name -> the argument for `get_eval_dataloader`.

        For a named dataset of the trainer, the argument is the name, as in transformers. For any other dataset, the
        argument is the dataset. The name of a single dataset is an empty text.

        Args:
            wanted: the `eval_dataset` that the caller passed; None for all eval datasets of the trainer.

        Raises:
            ArgumentError: if `wanted`, or a value of the dict `wanted`, is a text that is neither the name of an eval
                dataset nor the path of a file of rows. With an overridden `get_eval_dataloader`, any name is accepted.
        """
        given = self.eval_dataset
        if wanted is None:
            # Names, not datasets: an overridden `get_eval_dataloader` receives what transformers passes to it.
            return {name: name for name in given} if isinstance(given, dict) else {"": given}
        if isinstance(wanted, dict):
            return {name: self._name_or_dataset(each) for name, each in wanted.items()}
        found = self._name_or_dataset(wanted)
        return {found if isinstance(found, str) else "": found}

    def _name_or_dataset(self, wanted: Any) -> Any:
        """Return the dataset in a file of rows, if `wanted` is the path of the file. Otherwise return `wanted`."""
        if isinstance(wanted, str) and not self._resolves(wanted) and not self._is_eval_dataset(wanted):
            return as_dataset(wanted, self._integration)
        return wanted

    def check_evaluation(self, eval_dataset: Any = None) -> None:
        """Raise an error if `evaluate(eval_dataset)` cannot begin, for example for an unknown name of a dataset.

        `Evaluate` calls this method when the training begins, so that a mistake does not end the training later.
        Datasets are not read.

        Args:
            eval_dataset: the argument of `evaluate`.

        Raises:
            ArgumentError: if the trainer has no eval dataset with the given name.
            DataError: if there is no dataset, or if a dataset cannot be evaluated.
        """
        if any(is_overridden(self, name) for name in ("evaluate", "_evaluate", "get_eval_dataloader")):
            return  # an override may evaluate other data
        if eval_dataset is None and self.eval_dataset is None:
            raise self._no_eval_dataset()
        wanted: Mapping[str, Any] = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
        for name, each in wanted.items():
            if isinstance(each, str) and (self._may_be_added(each) or self._is_eval_dataset(each)):
                continue
            if isinstance(each, (str, Path)):
                check_table_file(each)
            elif each is not None:
                self._check_given(name, each)

    def _resolves(self, name: str) -> bool:
        """Return whether an override of `get_eval_dataloader` must load the dataset `name`.

        Return False without an override, or if `name` is the path of a file of rows. trainbus reads such files.
        """
        return is_overridden(self, "get_eval_dataloader") and not is_table_file(name)

    def _may_be_added(self, name: str) -> bool:
        """Return whether a handler may add a dataset with the unknown name `name` later.

        Return False if `name` is the path of a file of rows, or is similar to a known name. Also return False if the
        trainer has no eval datasets with names.
        """
        known = self.eval_dataset if isinstance(self.eval_dataset, dict) else {}
        return bool(known) and not is_table_file(name) and not closest(name, known)

    def _check_given(self, name: str, dataset: Any) -> None:
        label = f"eval_dataset[{name!r}]" if name else "eval_dataset"
        if problem := problem_of(label, dataset, self.data_collator):
            raise DataError(problem)


def no_samples(name: str) -> str:
    """Return the error text for an eval dataset without samples. `name` is empty for a dataset without a name."""
    return f"The eval dataset{f' {name!r}' if name else ''} has no samples. Pass another, or leave it out."
