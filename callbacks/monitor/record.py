"""Record all events and flag writes of a run in a file in the output folder."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import platform
import random
import time
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ...engine.arguments import TrainingArguments
from ...engine.checkpoint.rng_state import cuda_generators
from ...engine.evaluation.outputs import recordable
from ...engine.run import Run
from ...events.ledger import Entry as Write
from ...events.recording.files import VERSION, Encoder, file_name, length_upto, records_of_step
from ...events.recording.recorder import INSIDE, Recorder, handler_plan
from ...events.recording.recorder import Record as Entry
from ...events.stages import Stage, order
from ..base.line_file import LineFile, free_name, whole_lines

logger = logging.getLogger(__name__)

BYTES = 1024
"""The number of bytes that a fingerprint covers at the start of a tensor, and again at its end."""

WORDS = 64
"""The number of 32-bit words of an RNG state that a checksum covers. The checksum also covers the position in the
state, which each draw changes. A generator replaces all words of its state after 624 draws."""

_ORDINARY = INSIDE | {"on_step_begin", "on_step_end"}
"""The events of a step. If a step has no other events and no flag writes, its events share one line of the file."""

_LINES = 512
"""If the buffer has this number of records when a step begins, the records are written to the file."""

_LISTED = frozenset({"on_batch", "on_substep_end", "on_gradients"})
"""The events that a step may have several times. The line of the step has a list of their values."""

_SECONDS = 1.0
"""If this number of seconds has passed since the last write when a step begins, the buffer is written to the file."""

_SAVING = frozenset({"on_snapshot", "on_save"})
"""The events after which the buffer is written at once. The file then has all records from before a checkpoint."""


@dataclass
class Record(Recorder):
    """Writes every event, every flag write (with author and reason) and values such as the loss to `events.jsonl`.

    Set `record=True`, or add `Record()` to the callbacks. The commands `trainbus diff`, `trainbus trace` and `trainbus
    replay` read the file. Each rank writes its own file: rank 1 writes `events-rank1.jsonl`. A resumed run removes the
    records of the steps after its checkpoint. A new run in the same output folder renames the file of the earlier run
    to `events-1.jsonl`, or to the next free number.

    If `fingerprints` is True, the record of each step contains checksums of the batches and of the RNG states of torch
    and numpy. The records of each log and of each start of an epoch contain a checksum of the RNG state of Python.
    `trainbus diff` then finds the first step at which two runs differ in their data or in their random numbers. If the
    file cannot be written, the callback logs one warning and stops recording, and the run continues.
    """

    arguments = ("record",)

    fingerprints: bool = True
    """Whether to record checksums of batches and RNG states."""
    id: str | None = None
    """The name of the callback in the ledger and in checkpoints. None: the name of the class."""
    _file: LineFile | None = field(default=None, init=False, repr=False, compare=False)
    _buffer: list[Entry] = field(default_factory=list, init=False, repr=False, compare=False)
    _encoder: Encoder = field(default_factory=Encoder, init=False, repr=False, compare=False)
    _flushed: float = field(default=0.0, init=False, repr=False, compare=False)
    _events: list[str] = field(default_factory=list, init=False, repr=False, compare=False)
    """The events of the current step so far, if one line can hold all of them. After an event outside of `_ORDINARY`,
    or after a flag write, the list is empty for the rest of the step."""
    _step: Entry = field(default_factory=dict, init=False, repr=False, compare=False)
    """The record that becomes the line of the current step."""
    _random: RandomStates | None = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def from_arguments(cls, args: TrainingArguments) -> Record | None:
        return cls() if args.record else None

    @order(Stage.PREPARE)
    def on_setup(self, run: Run) -> None:
        if run.mode == "train":
            self._close()
            self._random = RandomStates() if self.fingerprints else None
            try:
                self._begin(run)
            except (OSError, ValueError, TypeError) as error:
                self._give_up(error)
            else:
                self.open(run)

    def on_close(self) -> None:
        self._close()

    def _begin(self, run: Run) -> None:
        step, folder = run.state.global_step, run.args.output_path
        path = folder / file_name(run.ranks.rank)
        folder.mkdir(parents=True, exist_ok=True)
        lines = whole_lines(path)
        if lines:
            head = next((line for line in lines if b'"recording":' in line), b"")
            if step > 0 and f'"run":"{run.run_id}"'.encode() in head:
                os.truncate(path, sum(map(len, lines[: length_upto(lines, step)])))
            else:
                path.rename(free_name(path))
        elif path.exists():
            os.truncate(path, 0)
        self._file, self._encoder = LineFile(path), Encoder()
        self._buffer = [self._head(run)]
        self._flush()

    def _head(self, run: Run) -> Entry:
        state = {name: value for name, value in run.state.to_dict().items() if name not in _LEFT_OUT}
        return {
            "recording": VERSION,
            "run": run.run_id,
            "rank": run.ranks.rank,
            "ranks": run.ranks.world_size,
            "step": run.state.global_step,
            "resumes": run.session.resume_requested,
            "time": time.time(),
            "pid": os.getpid(),
            "host": platform.node(),
            "device": str(run.args.device),
            "torch": torch.__version__,
            "args": run.args.to_dict(),
            "state": recordable(state)[0],
            "handlers": handler_plan(run.bus),
        }

    # Records.

    def put(self, record: Entry) -> None:
        self._buffer.append(record)

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return recordable(values)[0]

    def observe(self, event: str, run: Run, record: Entry) -> None:
        if event in _ORDINARY:
            self._observe_step(event, run, record)
        elif event in ("on_log_due", "on_epoch_begin"):
            if self._random is not None:
                record["python_rng"] = hash(random.getstate()[1]) & 0xFFFFFFFF
        elif event in ("on_save_begin", "on_snapshot", "on_commit", "on_save", "on_load"):
            record["checkpoint"] = run.checkpoint.step
        elif event == "on_exception":
            record["error"] = f"{type(run.exception).__name__}: {run.exception}"

    def _observe_step(self, event: str, run: Run, record: Entry) -> None:
        step, states = run.step, self._random
        if event == "on_batch":
            if states is not None:
                record["batch"], record["rng_batch"] = fingerprint(step.batch), states.checksum()
        elif event in ("on_substep_end", "on_gradients"):
            record["loss"] = _own(step.loss)
        elif event == "on_pre_optimizer_step":
            record["norm"] = _own(step.grad_norm)
        elif event == "on_step_end":
            record["lr"] = step.learning_rate
            if states is not None:
                record["rng_end"] = states.checksum()
        elif event == "on_step_begin" and states is not None:
            record["rng"] = states.checksum()

    def _watch(self, event: str, run: Run) -> None:
        try:
            ordinary = event in _ORDINARY and not run.control.speaking.event
            if ordinary and event == "on_step_begin":
                self._begin_step(run)
            elif ordinary and self._events:
                self._continue_step(event, run)
            else:
                self._unfold()
                super()._watch(event, run)
                if event in _SAVING:
                    self._flush()
                    self._flushed = -math.inf  # the rest of this step is written when the next step begins
        except Exception as error:  # a recording never ends a run
            self._give_up(error)

    def _write_flag(self, entry: Write) -> None:
        self._unfold()
        super()._write_flag(entry)

    def _begin_step(self, run: Run) -> None:
        self._unfold()
        time = perf_counter() - self._from
        if len(self._buffer) >= _LINES or time - self._flushed > _SECONDS:
            self._flushed = time
            self._flush()
        self._inside, self._events = True, ["on_step_begin"]
        self._step = {"p": (), "s": run.control.speaking.step + 1, "t": time, "d": []}
        self._observe_step("on_step_begin", run, self._step)

    def _continue_step(self, event: str, run: Run) -> None:
        line = self._step
        self._events.append(event)
        line["d"].append(round(1e6 * (perf_counter() - self._from - line["t"])))
        if event in _LISTED:
            values: Entry = {}
            self._observe_step(event, run, values)
            for name, value in values.items():
                line.setdefault(name, []).append(value)
            return
        self._observe_step(event, run, line)
        if event == "on_step_end":
            self._note_progress(run.state, line)
            line["p"], self._events, self._inside = tuple(self._events), [], False
            self._buffer.append(line)

    def _unfold(self) -> None:
        """Record the current step with one record per event, instead of one record for the whole step.

        The method adds a record for each event of the step so far. Later events of the step get their own records. The
        callback calls the method before it adds any other record inside a step, such as the record of a flag write.
        """
        if self._events:
            events, self._events = self._events, []
            for record in records_of_step(self._step, events):
                self.put(record)

    # The file.

    def _flush(self) -> None:
        records, self._buffer = self._buffer, []
        if self._file is None:
            return
        try:
            _read_tensors(records)
            self._file.append("".join(self._encoder.lines(records)))
        except (OSError, TypeError, ValueError) as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Log a warning, close the file, and record nothing more in this session. The run continues."""
        logger.warning("The recording ends here, and the run continues: %s: %s", type(error).__name__, error)
        self._buffer, self._events, file, self._file = [], [], self._file, None
        self.close()
        if file is not None:
            _close_quietly(file)

    def _close(self) -> None:
        self._unfold()
        self.close()
        self._flush()
        file, self._file = self._file, None
        if file is not None:
            _close_quietly(file)


_BUFFERS = frozenset({torch.int64, torch.float32, torch.int32, torch.uint8, torch.float64, torch.float16, torch.int16})
"""The dtypes of tensors whose memory numpy can read."""

_LEFT_OUT = ("log_history", "stateful_callbacks", "seconds", "best_model_checkpoint")
"""The fields of the state that the first line of a recording leaves out."""


def _close_quietly(file: LineFile) -> None:
    try:
        file.close()
    except OSError as error:
        logger.warning("%s cannot be closed: %s", file.path, error)


def _read_tensors(records: list[Entry]) -> None:
    """Replace the tensors in records by numbers.

    The function copies all tensors of an accelerator at once, so the host waits for the device only once.
    """
    places: list[tuple[Any, Any, bool]] = []
    tensors: list[torch.Tensor] = []
    for record in records:
        for name in ("loss", "norm", "batch"):
            value = record.get(name)
            if isinstance(value, torch.Tensor):
                places.append((record, name, name == "batch"))
                tensors.append(value)
            elif isinstance(value, list):
                for index, part in enumerate(value):
                    if isinstance(part, torch.Tensor):
                        places.append((value, index, name == "batch"))
                        tensors.append(part)
    for (place, key, is_batch), tensor in zip(places, _on_host(tensors)):
        place[key] = _checksum(tensor) if is_batch else float(tensor)


def _own(value: Any) -> Any:
    """Return a loss or gradient norm for a record; None for a sharded tensor.

    `_read_tensors` later reads the value of a returned tensor. A tensor on an accelerator is copied, because a compiled
    step may overwrite the tensor before the read. Only all ranks together can read a sharded tensor.
    """
    if type(value) is torch.Tensor and value.is_cpu:
        return value.detach() if value.requires_grad else value
    if not isinstance(value, torch.Tensor):
        return value
    if type(value) is not torch.Tensor and not isinstance(value, torch.nn.Parameter):
        return None  # a part of a sharded tensor: reading the whole needs all ranks
    return value.detach().clone()


def _on_host(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    devices = {tensor.device for tensor in tensors}
    if len(devices) != 1 or tensors[0].device.type == "cpu":
        return [tensor.cpu() for tensor in tensors]
    sizes = [tensor.numel() * tensor.element_size() for tensor in tensors]
    raw = torch.cat([tensor.reshape(-1).contiguous().view(torch.uint8) for tensor in tensors]).cpu()
    parts = torch.split(raw, sizes)
    return [part.clone().view(tensor.dtype) for part, tensor in zip(parts, tensors)]


def fingerprint(batch: Any) -> Any:
    """Return a checksum of the first tensor of a batch.

    For a tensor on the CPU, the checksum covers the number of elements, and the first and last `BYTES` bytes of the
    tensor. For a tensor on an accelerator, return these bytes as a tensor on the same device. The function
    `_read_tensors` later replaces the returned tensor by a checksum of the bytes. If the batch has no tensor, or if
    the tensor is sparse or on the meta device, return 0.
    """
    tensor = first_tensor(batch)
    if tensor is None or tensor.is_meta or tensor.layout is not torch.strided:
        return 0
    if tensor.is_cpu and tensor.dtype in _BUFFERS and tensor.is_contiguous() and tensor.numel():
        content = tensor.detach().numpy().data.cast("B")
        return zlib.crc32(content[-BYTES:], zlib.crc32(content[:BYTES], tensor.numel() & 0xFFFFFFFF))
    flat = tensor.detach().reshape(-1)
    most = max(1, BYTES // flat.element_size())
    ends = flat if flat.numel() <= 2 * most else torch.cat((flat[:most], flat[-most:]))
    raw = ends.contiguous().view(torch.uint8)
    return _checksum(raw, tensor.numel()) if raw.device.type == "cpu" else raw.clone()


def _checksum(raw: torch.Tensor, start: int = 0) -> int:
    """Return a checksum of a tensor of bytes, of shape (bytes,). `start` is the initial value of the checksum."""
    return zlib.crc32(raw.numpy().data, start & 0xFFFFFFFF)


def first_tensor(batch: Any) -> torch.Tensor | None:
    """Return the first tensor in a batch of nested lists, tuples and dicts; None if the batch has no tensor."""
    if isinstance(batch, torch.Tensor):
        return batch
    parts = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, (list, tuple)) else ()
    return next((found for found in map(first_tensor, parts) if found is not None), None)


class RandomStates:
    """Computes a checksum of the RNG states of torch and numpy.

    If numpy's global generator is not the default, MT19937, the checksum does not cover the state of numpy.
    """

    def __init__(self) -> None:
        """Find the state of numpy's global generator in memory, so that `checksum` reads it without a copy."""
        self._generator = np.random.get_bit_generator()  # type: ignore[attr-defined] # keeps its memory alive
        address = self._generator.ctypes.state_address
        known = isinstance(self._generator, np.random.MT19937)
        self._head = (ctypes.c_uint32 * (WORDS if known else 0)).from_address(address)
        self._position = (ctypes.c_uint32 * int(known)).from_address(address + 4 * 624)

    def checksum(self) -> int:
        """Return a checksum of the RNG states. It changes when code draws from a global generator of torch or numpy."""
        memory = torch.default_generator.get_state().numpy().data
        value = zlib.crc32(self._position, zlib.crc32(self._head, zlib.crc32(memory[: 4 * WORDS])))
        for generator in cuda_generators():
            value = (value * 31 + generator.get_offset()) & 0xFFFFFFFF
        return value
