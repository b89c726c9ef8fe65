"""Write the generated parts of the documentation from the code that they describe. `make docs` runs this file.

`python docs/generate.py --check` writes nothing. It fails if a file on disk differs from the text that it would write.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import logging
import re
import signal
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from enum import Enum
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

import trainbus
from trainbus.callbacks.defaults import DEFAULTS
from trainbus.engine.arguments import ALIASES, TrainingArguments
from trainbus.engine.arguments._base import Group, default_of
from trainbus.engine.loop import NEXT, Phase
from trainbus.events import COMMON, EVENTS, Callback, Clock, Event, Param, Stage, Trace, record
from trainbus.events.annotations import short_type
from trainbus.events.stages import ORDER_MARK, Order
from trainbus.integrations import INTEGRATIONS, TABLE, Kind

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parent.parent / "tools"))
import compatibility
import event_methods

ROOT = Path(__file__).resolve().parent.parent
NOTICE = "<!-- docs/generate.py writes this page. Change the code that it describes, then run `make docs`. -->"
"""The first line of a generated page."""


def main(arguments: list[str]) -> int:
    """Write all generated text, or only compare it with `--check`. Return the exit status."""
    stale = []
    for path, text in rendered().items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path)
            if "--check" not in arguments:
                path.write_text(text, encoding="utf-8")
    for path in stale:
        print(f"{'stale' if '--check' in arguments else 'written'}: {path.relative_to(ROOT)}")
    return 1 if stale and "--check" in arguments else 0


def rendered() -> dict[Path, str]:
    """Return the up-to-date text of every file with generated parts."""
    docs = ROOT / "docs"
    return {
        ROOT / "README.md": _with_parts(ROOT / "README.md", minimal=minimal()),
        docs / "tour.md": _with_parts(docs / "tour.md", loop=diagram(), stages=stages()),
        docs / "events.md": events_page(),
        docs / "callbacks.md": callbacks_page(),
        docs / "arguments.md": arguments_page(),
        docs / "compatibility.md": _page(compatibility.page(_table, NOTICE)),
        docs / "parity.md": parity_page(),
        **event_methods.files(),
    }


# The parts of README.md and docs/tour.md


def minimal() -> str:
    """Return `examples/minimal.py` without its docstring."""
    source = (ROOT / "examples" / "minimal.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    return _fenced("python", "\n".join(source.splitlines()[body[1].lineno - 1 :]))


def stages() -> str:
    """Return a table of the stages and their purposes."""
    docs = _docs_under(Stage)
    return _table(("Stage", "What runs in it"), ((f"`{stage.name}`", docs[stage.name]) for stage in Stage))


def diagram() -> str:
    """Return a mermaid diagram of the loop, from its table of transitions."""
    lines = ["stateDiagram-v2", f"    [*] --> {Phase.BEGIN.name}"]
    for phase in Phase:
        lines += [f"    {phase.name} --> {target.name}" for target in Phase if target in NEXT[phase]]
        if not NEXT[phase]:
            lines.append(f"    {phase.name} --> [*]")
    return _fenced("mermaid", "\n".join(lines))


# docs/events.md


def events_page() -> str:
    """Return the reference of the events. Recorded runs in it show when each event is announced."""
    shared = sum(event.origin == "transformers" for event in EVENTS)
    parts = [
        NOTICE,
        "# Events",
        "Find the event for your handler, and the parameters that the handler can name. [Writing callbacks]"
        "(writing_callbacks.md) explains how to write a handler.",
        _fenced("python", _EVENTS_EXAMPLE),
        f"An event is a named moment of a run. There are {len(EVENTS)} events. When a run *announces* an event, it "
        "calls the handlers of this event. A handler is a method of a callback, and has the name of the event. A "
        "function that you pass to `trainer.on(name, function)` is also a handler. The handlers of an event run in "
        "[stages](writing_callbacks.md#stages), from PREPARE to RELEASE. Handlers without a stage run in DECIDE.",
        "The section of an event has these parts:",
        "- ***Work* or *Fact*.** *Work* means that some work is due, and that a handler must do this work. In most "
        "runs, a callback of trainbus does the work, such as `Log`, `Evaluate` or `Checkpoint`. *Fact* means that "
        "something begins or has happened. Your handler may react.\n"
        f"- **Shared with transformers.** {shared} events have the same name in transformers' `TrainerCallback`, and "
        "are announced at the same moment. Their handlers receive all parameters of transformers. A callback that was "
        "written for transformers runs unchanged with trainbus.\n"
        "- **What filters count.** `trainer.on` has the filters `every=`, `once=`, `before=` and `after=`. The section "
        "says whether the filters count steps, epochs or announcements of the event. If the filters count steps, "
        "`every=10` calls the function at every tenth step. The count starts at 1.\n"
        "- **Parameters.** The table lists the parameters that this event has and some other events do not "
        "have. A handler can also name the "
        "[parameters of every event](#parameters-of-every-event).",
        "## Parameters of every event",
        "A handler names the parameters that it needs, in any order. A handler with `**kwargs` receives all "
        "parameters. If a handler names an unknown parameter, or annotates a parameter with a wrong type, the trainer "
        "refuses the callback with an error.",
        _params(COMMON),
        "## The events, in the order of a run",
        *(_event(event) for event in EVENTS),
        "## Recorded runs",
        "These lists show the order of events in small runs. The number on the left is the number of completed steps. "
        "A line without a number has the number of the line above. To record your own run, call `trainer.train()` "
        "inside `with trainbus.events.record(trainer.bus) as trace:`. Then print `trace`.",
        *_recordings(),
    ]
    return _page(parts)


_EVENTS_EXAMPLE = """
from typing import Any

from trainbus import Callback, TrainerState


class PrintLoss(Callback):
    def on_log(self, state: TrainerState, logs: dict[str, Any]) -> None:
        print(state.global_step, logs.get("loss"))
""".strip()


def _event(event: Event) -> str:
    shared = f", shared with {event.origin}" if event.origin != "trainbus" else ""
    facts = f"*{event.kind.value.capitalize()}*{shared}. The filters of `trainer.on` count {_COUNTED[event.clock]}."
    deprecated = [f"Deprecated. {event.deprecated}"] if event.deprecated else []
    parameters = [_params(event.params)] if event.params else []
    return "\n\n".join([f"### `{event.name}`", event.doc, *deprecated, facts, *parameters])


def _params(params: Iterable[Param]) -> str:
    rows = (
        (f"`{param.name}`", f"`{short_type(param.type)}`", f"{param.doc} {_deprecated(param)}".rstrip())
        for param in params
    )
    return _table(("Parameter", "Type", "Meaning"), rows)


def _deprecated(param: Param) -> str:
    return f"Deprecated. {param.deprecated}" if param.deprecated else ""


_COUNTED = {
    Clock.CALLS: "the announcements of the event",
    Clock.STEP: "steps, including the step that runs",
    Clock.STEPS_DONE: "completed steps",
    Clock.EPOCH: "epochs, including the epoch that begins or ends",
}


class _Rows(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A dataset of eight samples with two classes. With `fail=True`, the last label raises an error in the loss."""

    def __init__(self, fail: bool = False) -> None:
        self.labels = torch.tensor([0, 1, 0, 1, 0, 1, 0, 9 if fail else 1])

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.ones(2), self.labels[index]


class _Stop(Callback):
    def on_step_end(self, control: Any) -> None:
        control.request("training_stop", "for this page")


class _PressCtrlC(Callback):
    def __init__(self, times: int) -> None:
        self.times = times

    def on_step_begin(self) -> None:
        for _ in range(self.times):
            signal.raise_signal(signal.SIGINT)


class _Fail(Callback):
    def on_step_end(self) -> None:
        raise RuntimeError("for this page")


def _trainer(folder: str, callbacks: Iterable[Callback] = (), fail: bool = False, **options: Any) -> trainbus.Trainer:
    options = {"num_train_epochs": 1, "save_strategy": "no", **options}
    args = TrainingArguments(
        folder, per_device_train_batch_size=2, gradient_accumulation_steps=2, use_cpu=True, disable_tqdm=True, **options
    )
    return trainbus.Trainer(
        nn.Linear(2, 2),
        args,
        train_dataset=_Rows(fail),
        eval_dataset=_Rows(),
        criterion=nn.functional.cross_entropy,
        callbacks=list(callbacks),
    )


def _recorded(work: Callable[[], Any], trainer: trainbus.Trainer) -> Trace:
    with record(trainer.bus) as trace, suppress(Exception, KeyboardInterrupt, SystemExit):
        work()
    return trace


def _recordings() -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder, _silence():
        options = {"logging_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"}
        trainer = _trainer(folder, **options, per_device_eval_batch_size=4)
        yield "### A training with a log, an evaluation and a checkpoint"
        yield "The training has two steps. Each step has two batches."
        yield _fenced("text", str(_recorded(trainer.train, trainer)))
        trainer = _trainer(folder, **{**options, "num_train_epochs": 2, "save_strategy": "no", "eval_strategy": "no"})
        yield "### A training that resumes from this checkpoint"
        resumed = _recorded(lambda: trainer.train(resume_from_checkpoint=True), trainer)
        yield _fenced("text", "\n".join(str(resumed).splitlines()[:5]) + "\n       ...")
        yield "### A prediction"
        trainer = _trainer(folder, per_device_eval_batch_size=4)
        yield _fenced("text", str(_recorded(lambda: trainer.predict(_Rows()), trainer)))
        yield "### Events at the end of a run"
        yield "The table shows which events a training announces at its end."
        endings = {
            "all steps are done": ((), {}),
            "a callback requests a stop": ((_Stop(),), {}),
            "`max_steps` is reached inside an epoch": ((), {"max_steps": 1}),
            "a handler raises": ((_Fail(),), {}),
            "the model or the data raises": ((), {"fail": True}),
            "you press Ctrl-C, or a signal such as SIGTERM arrives": ((_PressCtrlC(1),), {}),
            "you press Ctrl-C a second time before the step ends": ((_PressCtrlC(2),), {}),
        }
        closing = ("on_epoch_end", "on_train_end", "on_exception", "on_close")
        rows = []
        for ending, (callbacks, options) in endings.items():
            trainer = _trainer(folder, callbacks, **options)
            heard = _recorded(trainer.train, trainer).events
            rows.append((ending, *("yes" if event in heard else "-" for event in closing)))
        yield _table(("The run ends because", *(f"`{event}`" for event in closing)), rows)
        yield (
            "`trainer.end()` announces `on_end`. Call `trainer.end()` when your program does not need the trainer any "
            "more."
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Do not show the output and the warnings of the recorded runs on the terminal."""
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(logging.NOTSET)


# docs/callbacks.md


class _StandIn(ModuleType):
    """A module in place of a package that is not installed. Every attribute is an empty class."""

    __path__ = ()  # type: ignore[assignment] # makes it a package

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


class _StandIns(MetaPathFinder, Loader):
    """Finds stand-ins for packages that are not installed, so that the page can show the callbacks that need them."""

    def __init__(self) -> None:
        absent = {target: package for target, package, _ in TABLE.values() if find_spec(package) is None}
        self.absent = set(absent.values())
        self.users = {f"trainbus.integrations.{target.partition(':')[0]}" for target in absent}

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, self, is_package=True) if name.partition(".")[0] in self.absent else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _StandIn(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Leave the module as it is."""


@contextmanager
def _stand_ins_for_missing_packages() -> Iterator[None]:
    """Make integrations importable although their packages are not installed. Remove their modules at the end."""
    before = set(sys.modules)
    sys.meta_path.append(stand_ins := _StandIns())
    try:
        yield
    finally:
        sys.meta_path.remove(stand_ins)
        for name in set(sys.modules) - before:
            if isinstance(sys.modules[name], _StandIn) or name in stand_ins.users:
                del sys.modules[name]


def callbacks_page() -> str:
    """Return the reference of the callbacks, from their docstrings and fields."""
    with _stand_ins_for_missing_packages():
        return _page(_callbacks())


def _callbacks() -> list[str]:
    public = [(name, getattr(trainbus, name)) for name in dir(trainbus)]
    found = [value for name, value in public if _is_callback(value) and name == value.__name__]
    found.sort(key=lambda cls: cls.__name__.lower())
    extras = {target.partition(":")[2]: extra for target, _, extra in TABLE.values()}
    common = _docs_under(Callback)
    return [
        NOTICE,
        "# Callbacks",
        "Add a feature to a training: import a callback from `trainbus`, and pass it in `Trainer(callbacks=[...])`.",
        _fenced("python", _CALLBACKS_EXAMPLE),
        "To write your own callback, see [writing callbacks](writing_callbacks.md).",
        "## Find a callback",
        _tasks(found),
        "## How to read an entry",
        "- **Default callback.** The Trainer builds this callback if the training arguments need it. To replace the "
        "callback of the Trainer, pass your own instance.\n"
        "- **Training arguments.** The training arguments that configure the callback.\n"
        "- **Field.** A field of the callback. You can pass the field to the constructor. If the column *Default* says "
        "*set by the run*, you cannot pass the field, because the run sets it.\n"
        "- **Handles.** The [events](events.md) that the callback handles. The stage of each handler is in "
        "parentheses. [Stages](writing_callbacks.md#stages) decide the order of handlers. By default, handlers of the "
        "same stage run in the order in which their callbacks were attached.",
        "Every callback also has these attributes:",
        _table(("Attribute", "Meaning"), ((f"`{name}`", common[name]) for name in _OF_ALL)),
        *(_callback(cls, extras.get(cls.__name__, "")) for cls in found),
        "# Values that callbacks take",
        "## Triggers",
        "A trigger says when something is due. `a | b` is due when `a` or `b` is due. `a & b` is due when both are due "
        "at the same step.",
        *(_function(function) for function in _TRIGGERS),
        "## Keep",
        inspect.cleandoc(trainbus.Keep.__doc__ or ""),
        _fields(trainbus.Keep),
    ]


_CALLBACKS_EXAMPLE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

from trainbus import EarlyStopping, Log, Trainer, TrainingArguments, every

data = TensorDataset(torch.randn(32, 4), torch.randint(2, (32,)))
trainer = Trainer(
    nn.Linear(4, 2),
    TrainingArguments("outputs", num_train_epochs=5, eval_strategy="epoch", use_cpu=True),
    train_dataset=data,
    eval_dataset=data,
    criterion=nn.CrossEntropyLoss(),
    callbacks=[EarlyStopping(patience=2), Log(every(2), prefix="dense_")],
)
trainer.train()
""".strip()

_TASKS = {
    "trainbus.callbacks.flow": "Log, evaluate, save and skip batches",
    "trainbus.callbacks.stopping": "Stop a run, or skip an update",
    "trainbus.callbacks.monitor": "See, measure and check a run",
    "trainbus.callbacks.optimizer": "Change gradients, the optimizer or the learning rate",
    "trainbus.callbacks.model": "Change, average or compile the model",
    "trainbus.callbacks.precision": "Compute with fewer bits",
    "trainbus.callbacks.parallel": "Train on several devices",
    "trainbus.callbacks.base": "Send the logs to a tracker or a file",
    "trainbus.integrations": "Connect other services and libraries",
    "trainbus": "Write callbacks, and use callbacks of transformers",
}
"""Prefix of a module name -> the task of the callbacks in these modules. The longest prefix applies."""

_KIND_TASKS = {
    Kind.TRACKER: _TASKS["trainbus.callbacks.base"],
    Kind.STRATEGY: _TASKS["trainbus.callbacks.parallel"],
}
"""Kind of an integration -> its task, if that is not the task of its module."""


def _tasks(found: list[type[Callback]]) -> str:
    """Return a list of tasks, each with links to its callbacks."""
    by_task: dict[str, list[str]] = {task: [] for task in _TASKS.values()}
    kinds = {row.class_name: row.kind for row in INTEGRATIONS.values()}
    for cls in found:
        start = max((name for name in _TASKS if cls.__module__.startswith(name)), key=len)
        task = _KIND_TASKS.get(kinds.get(cls.__name__), _TASKS[start])
        by_task[task].append(f"[{cls.__name__}](#{cls.__name__.lower()})")
    return "\n".join(f"- **{task}:** {', '.join(links)}" for task, links in by_task.items() if links)


_OF_ALL = ("stage", "on_error", "budget", "over_budget", "local", "id")
_TRIGGERS = (trainbus.every, trainbus.at, trainbus.log_spaced, trainbus.at_end, trainbus.never)


def _function(function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    bare = [parameter.replace(annotation=parameter.empty) for parameter in signature.parameters.values()]
    shown = signature.replace(parameters=bare, return_annotation=signature.empty)
    text, _, arguments = inspect.cleandoc(function.__doc__ or "").partition("\n\nArgs:\n")
    text = text.partition("\n\nRaises:")[0]
    listed = textwrap.dedent(arguments.partition("\n\nRaises:")[0])
    named = [" ".join(line.split()) for line in re.split(r"\n(?=\w)", listed) if line]
    bullets = [f"- `{name}`: {meaning}" for name, _, meaning in (line.partition(": ") for line in named)]
    return "\n\n".join(part for part in (f"### `{function.__name__}{shown}`", text, "\n".join(bullets)) if part)


def _is_callback(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, Callback) and value is not Callback


def _callback(cls: type[Callback], extra: str) -> str:
    parts = [f"## {cls.__name__}", _errors_listed(inspect.cleandoc(cls.__doc__ or ""))]
    facts = []
    if cls in DEFAULTS:
        facts.append("[Default callback](#how-to-read-an-entry).")
    if cls.arguments:
        facts.append(f"Training arguments: {_names(cls.arguments)}.")
    if extra:
        facts.append(f"Needs `pip install 'trainbus[{extra}]'`.")
    if facts:
        parts.append(" ".join(facts))
    if fields := _fields(cls):
        parts.append(fields)
    if handled := [*_handled(cls)]:
        parts.append(f"Handles {', '.join(handled)}.")
    return "\n\n".join(parts)


def _errors_listed(doc: str) -> str:
    """Return a docstring as Markdown: names of pages become links, and its section `Raises` becomes a list of
    errors."""
    text, found, raised = re.sub(r"`docs/([\w/]+\.md)`", r"[\1](\1)", doc).partition("\n\nRaises:\n")
    if not found:
        return text
    errors = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", textwrap.dedent(raised))]
    named = (entry.partition(": ") for entry in errors)
    return f"{text}\n\nErrors:\n\n" + "\n".join(f"- `{name}`: {meaning}" for name, _, meaning in named)


def _fields(cls: type) -> str:
    """Return a table of the documented fields of a dataclass; an empty string if there are none."""
    docs, rows = _docs_under(cls), []
    for field in dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ():
        if field.name in docs and not field.name.startswith("_"):
            rows.append((f"`{field.name}`", _default(field) if field.init else "*set by the run*", docs[field.name]))
    return _table_with_details(("Field", "Default", "Meaning"), rows) if rows else ""


def _handled(cls: type[Callback]) -> Iterator[str]:
    for event in EVENTS:
        handler = getattr(cls, event.name)
        if handler is not getattr(Callback, event.name):
            mark: Order = getattr(handler, ORDER_MARK, Order())
            yield f"`{event.name}` ({(mark.stage or cls.stage).name})"


def _default(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        value = field.default
    elif field.default_factory is not dataclasses.MISSING:
        value = field.default_factory()
    else:
        return "*required*"
    return f"`{_value(value)}`"


def _value(value: Any) -> str:
    if isinstance(value, Enum):
        return repr(value.value)
    if inspect.isfunction(value):
        return value.__name__
    return "Keep()" if value == trainbus.Keep() else repr(value)


# docs/arguments.md


def arguments_page() -> str:
    """Return the reference of the training arguments, with one table per group."""
    groups = [group for group in reversed(TrainingArguments.__bases__) if issubclass(group, Group)]
    count = len(dataclasses.fields(TrainingArguments))
    aliases = (
        (f"`{name}`", f"`{alias.new}`" if alias.new else "This name has no effect. Remove the name.")
        for name, alias in sorted(ALIASES.items())
    )
    parts = [
        NOTICE,
        "# Training arguments",
        "Pass these arguments to `TrainingArguments(...)`. A script that uses `HfArgumentParser` reads them from "
        "flags on the command line.",
        _fenced(
            "python",
            'from trainbus import TrainingArguments\n\nargs = TrainingArguments("outputs", learning_rate=1e-4)',
        ),
        f"`TrainingArguments` has {count} fields. Fields of transformers keep their names and defaults. [The "
        "differences](differences.md) list the exceptions. If several values are invalid, one error lists all of "
        "them.",
        *(_group(group) for group in groups),
        "## Other names",
        "Argument names of older releases and of other trainers also work. Most of these names emit a `FutureWarning`. "
        "[Compatibility](compatibility.md#other-names-of-arguments) shows the value that each name sets.",
        _table(("Alias", "Argument"), aliases),
    ]
    return _page(parts)


def _group(group: type[Group]) -> str:
    own = [field for field in dataclasses.fields(group) if field.name in vars(group).get("__annotations__", {})]
    name = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", group.__name__.removesuffix("Arguments"))
    rows = []
    for field in own:
        help = field.metadata["help"]
        choices = [_value(choice) for choice in field.metadata.get("choices") or ()]
        if any(choice not in help for choice in choices):
            help += f" One of {_names(choices)}."
        help = help.replace("The compatibility page", "[The compatibility page](compatibility.md#optimizers)")
        rows.append((f"`{field.name}`", f"`{_value(default_of(field))}`", help))
    first = inspect.cleandoc(group.__doc__ or "")
    return f"## {name}\n\n{first}\n\n{_table_with_details(('Argument', 'Default', 'Meaning'), rows)}"


# docs/parity.md


def parity_page() -> str:
    """Return the list of trainings with equal results in both trainers, from the table of cases that the tests run."""
    with _importable(ROOT / "tests", ROOT / "tests" / "parity"):
        from parity_cases import SUBJECTS, base
        from parity_differences import DIFFERENCES
    count = sum(map(len, SUBJECTS.values()))
    parts = [
        NOTICE,
        "# Parity with transformers' Trainer",
        "Check here whether a test compares your settings with transformers.",
        "For example, you train with `lr_scheduler_type='cosine'`. The table [Learning rates](#learning-rates) has the "
        "row *cosine*. The cell *TrainingArguments* of this row shows the tested arguments. The cell *Differs* is "
        "empty, so both trainers give equal results with these arguments.",
        f"The tests run {count} trainings (*cases*) with `transformers.Trainer` 5.23 and with `trainbus.Trainer`, on "
        f"CPU. "
        "The tests compare these results bit for bit:",
        "- the weights and the training loss,\n- every entry of the log,\n- the best model and the names of the "
        "checkpoints,\n- the results of `evaluate()` and `predict()` after the training.",
        "The tests also generate 300 random programs from models, data, arguments, callbacks and resume points. For "
        "each program, the tests compare the same results, and the order in which callbacks run. The command "
        "`make torture` generates and compares 3,000 more programs.",
        "## Summary",
        _table(("Subject", "Cases", "Cases with a difference"), _subjects(SUBJECTS)),
        "## How to read the tables",
        "- *What happens* describes the behavior that the case tests.\n"
        "- *TrainingArguments* shows the arguments that the case sets. All cases also use these arguments, unless the "
        f"cell shows another value: {base()}.\n"
        "- *Trainer* names the inputs that the case passes to the Trainer instead of the default inputs. The default "
        "inputs are a small BERT classifier and two lists of samples.\n"
        "- *Differs* names a deliberate difference that affects the case. The comparison leaves out only this "
        "difference. The cell is empty for most cases.",
        "## Differences that affect cases",
        "The column *Differs* uses these names. Each name stands for one row of the page "
        "[differences](differences.md).",
        _table(
            ("Name", "Row of the page on differences"),
            ((name, difference.row) for name, difference in DIFFERENCES.items()),
        ),
    ]
    for subject, cases in SUBJECTS.items():
        head = ("Case", "What happens", "TrainingArguments", "Trainer", "Differs")
        parts += [f"## {subject}", _table(head, (_case(name, case) for name, case in cases.items()))]
    return _page(parts)


def _subjects(subjects: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, str]]:
    for subject, cases in subjects.items():
        anchor = re.sub(r"[^\w\- ]", "", subject.lower()).replace(" ", "-")
        differing = sum(bool(case.differs) for case in cases.values())
        yield f"[{subject}](#{anchor})", str(len(cases)), str(differing or "-")


def _case(name: str, case: Any) -> tuple[str, ...]:
    arguments = ", ".join(f"`{key}={value!r}`" for key, value in case.args.items())
    return name, case.about, arguments, _names(sorted(case.options)), case.differs


@contextmanager
def _importable(*folders: Path) -> Iterator[None]:
    """Add folders to the import path inside the `with` block."""
    before = list(sys.path)
    sys.path[:0] = map(str, folders)
    try:
        yield
    finally:
        sys.path[:] = before


# Text.


def _docs_under(cls: type) -> dict[str, str]:
    """Return the docstrings of the attributes and properties of a class, inherited ones included: name -> docstring."""
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("trainbus"):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body  # type: ignore[attr-defined]
        for statement, following in pairwise(body):
            target = getattr(statement, "target", None) or next(iter(getattr(statement, "targets", [])), None)
            text = getattr(getattr(following, "value", None), "value", None)
            if isinstance(target, ast.Name) and isinstance(following, ast.Expr) and isinstance(text, str):
                docs[target.id] = inspect.cleandoc(text)
        docs |= {
            name: inspect.cleandoc(value.__doc__)
            for name, value in vars(base).items()
            if isinstance(value, property) and value.__doc__
        }
    return docs


def _names(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(_cell(cell) for cell in line) + " |" for line in lines)


WORDS_OF_A_CELL = 25
"""The largest number of words in a cell. Further sentences move below the table."""


def _table_with_details(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Return a table. If the last cell of a row is too long, its further sentences are in a list below the table."""
    short, details = [], []
    for *before, text in rows:
        sentences = re.split(r"(?<=[^.]\.) +", " ".join(text.split()))
        kept = 1
        while kept < len(sentences) and _word_count(sentences[: kept + 1]) <= WORDS_OF_A_CELL:
            kept += 1
        short.append((*before, " ".join(sentences[:kept])))
        rest = sentences[kept:]
        if len(rest) > 2:
            details += [f"- {before[0]}:", *(f"  - {sentence}" for sentence in rest)]
        elif rest:
            details.append(f"- {before[0]}: {' '.join(rest)}")
    return "\n\n".join([_table(head, short), *(["Details:\n\n" + "\n".join(details)] if details else [])])


def _word_count(sentences: list[str]) -> int:
    return len(" ".join(sentences).split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text.rstrip()}\n```"


def _page(parts: Iterable[str]) -> str:
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _with_parts(page: Path, **parts: str) -> str:
    """Return the text of a page with the text between each pair of markers replaced.

    Args:
        page: the file.
        parts: marker name -> the text for it.

    Raises:
        ValueError: if the page does not have each marker exactly once.
    """
    text = page.read_text(encoding="utf-8")
    for name, part in parts.items():
        begin, end = f"<!-- generated: {name} -->", f"<!-- end of {name} -->"
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{page.name} needs the markers {begin} and {end}, each once.")
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{part}\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
