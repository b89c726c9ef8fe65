"""Convert pandas data frames and files of rows to datasets of the library `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

from ..events.errors import DataError


class Tables:
    """Converts tables to datasets. Each sample is a dict, and its keys are the names of the columns."""

    @staticmethod
    def from_frame(frame: Any) -> datasets.Dataset:
        """Build a dataset from the rows of a `pandas.DataFrame`. The index of the frame does not become a column.

        Raises:
            DataError: if a column mixes types, such as numbers and texts.
        """
        try:
            return datasets.Dataset.from_pandas(frame, preserve_index=False)
        except (ValueError, TypeError, NotImplementedError) as error:  # pyarrow raises subclasses of them
            details = ": ".join(map(str, reversed(error.args)))
            raise DataError(
                f"The data frame cannot become a dataset: {details}. Give all values of a column one type."
            ) from error

    @staticmethod
    def from_file(path: str | Path) -> datasets.Dataset:
        """Read the rows of a file as a dataset: `.csv`, `.tsv`, `.json`, `.jsonl` or `.parquet`.

        Raises:
            DataError: if the file cannot be read, or if its content does not have the format of its suffix.
        """
        suffix, name = Path(path).suffix.lower(), str(path)
        try:
            if suffix == ".parquet":
                return datasets.Dataset.from_parquet(name)
            if suffix in (".json", ".jsonl"):
                return datasets.Dataset.from_json(name)
            return datasets.Dataset.from_csv(name, **({"sep": "\t"} if suffix == ".tsv" else {}))
        except (datasets.exceptions.DatasetsError, OSError, ValueError) as error:
            cause = error.__cause__ or error
            raise DataError(f"{name} cannot be read as {suffix[1:]}: {cause}") from error
