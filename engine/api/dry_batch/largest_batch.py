"""Read the largest batch of a run and run the model on it, without an effect on the training."""

from __future__ import annotations

from typing import Any

import torch

from ....events.errors import ArgumentError, DataError, NonFiniteError, note
from ...checkpoint.rng_state import random_states, restore_random_states
from ...data.batches import to_device
from ...distributed.memory_errors import is_out_of_memory
from ...loss.index_errors import message_of, out_of_range, rows_in_batch
from ...loss.signature import user_model
from ...run import Run
from . import checks, rows
from .forward import Measured, NoForward, check_runnable, run_model
from .kept_state import KeptState, Unrestorable
from .report import DryBatchReport
from .rows import NoBatch, Source


def look_at_batch(trainer: Any, report: DryBatchReport) -> None:
    """Read the largest batch, run the model on this batch, and add the results to the report.

    If one rank cannot read its batch, no rank runs the model, and `report.skipped` says why.
    """
    run: Run = trainer.run
    args = run.args
    main_input = getattr(user_model(run.model), "main_input_name", "input_ids")
    size = run.train_batch_size // max(1, args.n_gpu if run.ranks.single_process else 1)
    batch: Any = None
    source: Source | None = None
    problem = ""
    try:
        source = rows.source_of(
            run.train_dataloader, trainer.train_dataset, max(1, size), args.length_column_name, main_input
        )
        batch = _read(trainer, source, report)
    except (NoBatch, Unrestorable) as error:
        problem = str(error)
    problems = run.ranks.gather_objects(problem)
    if source is None or any(problems):
        report.rows, report.chosen = [], ""
        report.skipped.append(f"The batch: {next(filter(None, problems))}.")
        return
    _describe(trainer, source, batch, main_input, report)
    measured = _forward(trainer, source, batch, report)
    if measured is None:
        return
    report.loss, report.grad_norm, report.peak_bytes = float(measured.loss), measured.grad_norm, measured.peak_bytes
    if measured.peak_bytes is not None:
        report.device_bytes = torch.cuda.get_device_properties(run.device).total_memory
    report.checks.append("forward and backward")
    if report.loss != report.loss or abs(report.loss) == float("inf"):
        raise NonFiniteError(_not_finite(report))
    report.findings += checks.gradient_findings(report.loss, measured.grad_norm, measured.without, measured.trained)


def _read(trainer: Any, source: Source, report: DryBatchReport) -> Any:
    """Read the largest batch of `source`, and return the batch on the device of the run.

    If the lengths of the samples are not known, read the first samples. Write to `report` which samples are read.
    Afterwards, restore the state of the dataset, the collator and all random generators.
    """
    run = trainer.run
    report.rows, report.chosen = source.chosen()
    stops = [trainer, run, run.bus, run.args, run.model, *run.bus.subscribers.values()]
    kept = KeptState({"the dataset": source.dataset, "the collator": source.collate}, stops, data=True)
    randomness = random_states()
    try:
        return to_device(source.collate([source.dataset[row] for row in report.rows]), run.device)
    finally:
        kept.restore()
        restore_random_states(randomness)


def _describe(trainer: Any, source: Source, batch: Any, main_input: str, report: DryBatchReport) -> None:
    """Add shapes, masked labels, padding and truncation of the batch to the report, with findings about these values.

    `main_input` is the key of the main input of the model in the batch, such as `input_ids`.
    """
    run = trainer.run
    report.shapes = rows.shapes_of(batch)
    report.masked = rows.masked_share(trainer.objective.labels_in(batch))
    pad = getattr(run.processing_class, "pad_token_id", None)
    report.padding = rows.padding_of(batch, main_input, pad)
    lengths, width = rows.lengths_in(batch, main_input, pad)
    of_all = source.lengths
    if of_all is not None and rows.include_padding(of_all[report.rows].tolist(), lengths, width):
        of_all = None  # tokenization padded the samples, so the true lengths are not known
    report.padding_of_run = None if of_all is None else source.padding_of_run()
    report.max_length = rows.max_length_of(user_model(run.model), run.processing_class)
    counted = lengths if of_all is None else of_all.tolist()
    if report.max_length is not None and counted and not source.packs:
        report.truncated = sum(length >= report.max_length for length in counted) / len(counted)
    found = (
        checks.label_finding(report.masked),
        checks.padding_finding(report.padding, report.padding_of_run, source.grouped, rows.padding_to_longest(lengths)),
        checks.truncation_finding(report.truncated, report.max_length, of_batch=of_all is None),
    )
    report.findings += [text for text in found if text is not None]
    known = {"labels": report.masked, "padding": report.padding, "truncation": report.truncated}
    report.checks += [name for name, share in known.items() if share is not None]


def _forward(trainer: Any, source: Source, batch: Any, report: DryBatchReport) -> Measured | None:
    """Run forward and backward on the batch, and return the result.

    If a rank raises `NoForward`, return None on all ranks, and add the reason to `report.skipped`. If the model fails
    on some ranks, these ranks raise an error, and the other ranks return None.
    """
    run: Run = trainer.run
    measured: Measured | None = None
    failure: BaseException | None = None
    problem = ""
    try:
        check_runnable(trainer)
    except NoForward as error:
        problem = str(error)
    if not any(problems := run.ranks.gather_objects(problem)):
        try:
            measured = run_model(trainer, batch, source.dataset)
        except NoForward as error:
            problem = str(error)
        except Exception as error:
            failure = _explained(run, error, batch, report)
        problems = run.ranks.gather_objects(problem or (str(failure) if failure is not None else ""))
    if failure is not None:
        raise failure
    if any(problems):
        report.skipped.append(f"Forward and backward: {next(filter(None, problems))}.")
        return None
    return measured


def _explained(run: Run, error: Exception, batch: Any, report: DryBatchReport) -> Exception:
    """Return the error to raise after the model raised `error` in the dry batch.

    The result is a new error with a remedy, or `error` with a note about the dry batch. If memory ran out in a single
    process with `auto_find_batch_size`, the result is `error` without a note.
    """
    where = "the dry batch, before the first step"
    if is_out_of_memory(error):
        if run.args.auto_find_batch_size and run.ranks.single_process:
            return error  # the training starts again with a smaller batch
        explained: Exception = ArgumentError(
            f"The largest batch does not fit in memory: {len(report.rows)} samples, {_largest(report)}. Halve "
            "`per_device_train_batch_size` and double `gradient_accumulation_steps`, which gives the same step, or set "
            "`gradient_checkpointing=True` or `bf16=True`. `auto_find_batch_size=True` searches a size that fits."
        )
        explained.__cause__ = error
        return explained
    found = out_of_range(error)
    if found is not None and found.rows:
        places = rows_in_batch(found, batch, len(report.rows))
        some = "samples" if places is not None else "one or more of the samples"
        named = report.rows if places is None else [report.rows[at] for at in places if at < len(report.rows)]
        samples = f"{some} {', '.join(map(str, named[:5]))} of the training dataset"
        explained = DataError(message_of(found, where, samples))
        explained.__cause__ = error
        return explained
    note(error, f"This is {where}. Its samples of the training dataset are: {', '.join(map(str, report.rows[:8]))}.")
    return error


def _largest(report: DryBatchReport) -> str:
    return next((f"{name} {text}" for name, text in report.shapes.items()), "of unknown shape")


def _not_finite(report: DryBatchReport) -> str:
    samples = ", ".join(map(str, report.rows[:8])) + (", ..." if len(report.rows) > 8 else "")
    cause = checks.label_finding(report.masked)
    if cause is None:
        cause = (
            "Look for NaN in these samples, and for a division by zero or a logarithm of zero in the loss. "
            "`debug='underflow_overflow'` names the first layer with a value that is not finite."
        )
    return (
        f"The loss of the dry batch is {report.loss}, before the first step. The batch has the samples {samples} of "
        f"the training dataset. {cause}"
    )
