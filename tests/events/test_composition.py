"""Capabilities and conflicts of callbacks."""

from __future__ import annotations

import ast

import pytest

from trainbus.events import ArgumentError, BestMetric, Callback, Capability, Conflict
from trainbus.events.composition import describe_capabilities, is_rank_local, providers, provides, refuse_conflicts


class Sharding(Callback):
    capabilities = frozenset({Capability.SHARDS_MODEL})


class Averaging(Callback):
    conflicts_with = (Conflict(Capability.SHARDS_MODEL, "it averages full weights. Leave one of them out."),)


class Compiling(Callback):
    conflicts_with = (Conflict(Sharding, "it needs one storage per weight. Leave it out."),)


class Sometimes(Callback):
    def __init__(self, saves):
        self.saves = saves

    def has(self, capability):
        return self.saves if capability is Capability.WRITES_CHECKPOINTS else super().has(capability)


class Foreign:
    """A callback that does not derive from ours. It may declare `local`."""

    capabilities = conflicts_with = 3
    local = True

    def on_step_end(self, args, state, control, **kwargs):
        """Do nothing."""


def test_a_plain_callback_declares_nothing():
    plain = Callback()
    assert not any(plain.has(capability) for capability in Capability)
    assert (plain.conflicts_with, plain.variant, plain.best_metric, plain.publisher) == ((), "", None, None)
    assert Callback.default_id() == "Callback"
    assert BestMetric() == ("eval_loss", False)


def test_providers_are_found_by_class_and_by_instance():
    sharding, foreign, saving = Sharding(), Foreign(), Sometimes(True)
    callbacks = [foreign, Sometimes(False), saving, sharding]
    assert providers(callbacks, Capability.WRITES_CHECKPOINTS) == [saving]
    assert provides(callbacks, Capability.SHARDS_MODEL)
    assert not provides(callbacks, Capability.DEEPSPEED)


@pytest.mark.parametrize("listed", [(Averaging(), Sharding()), (Sharding(), Averaging())], ids=["first", "second"])
def test_a_conflict_that_either_side_declares_is_refused(listed):
    message = r"^Averaging does not work with Sharding: it averages full weights\. Leave one of them out\.$"
    with pytest.raises(ArgumentError, match=message):
        refuse_conflicts(listed)


def test_all_conflicts_are_named_at_once():
    with pytest.raises(ArgumentError, match="Some callbacks exclude each other") as caught:
        refuse_conflicts([Averaging(), Foreign(), Sharding(), Compiling()])
    assert str(caught.value).count("\n- ") == 2


def test_callbacks_without_a_conflict_pass():
    refuse_conflicts([Foreign(), Foreign(), Averaging(), Averaging(), Compiling()])


def test_any_class_may_declare_that_it_is_rank_local():
    assert is_rank_local(Foreign())
    assert not is_rank_local(Sharding())
    assert not is_rank_local(Averaging)


def test_capabilities_are_described_one_line_per_callback():
    callbacks = {"one": Sharding(), "plain": Averaging(), "theirs": Foreign(), "saver": Sometimes(True)}
    assert describe_capabilities(callbacks) == (
        "Capabilities:\n  one: shards the weights\n  theirs: decides on one rank (local)\n  saver: writes checkpoints"
    )
    assert describe_capabilities({"plain": Averaging()}) == ""


FORMER = {"places_model", "writes_checkpoints", "chooses_best", "aside", "retire"}
"""Attributes that were probed before callbacks declared them."""

DECLARED = {"capabilities", "conflicts_with", "publisher", "instead_of", "variant", "best_metric", "local"}
"""Attributes that `Callback` declares and that no code may probe."""


def probes(source):
    """Yield line and name of each `getattr` or `hasattr` with a constant name, and of each class-name comparison."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("getattr", "hasattr") and len(node.args) > 1:
            name = getattr(node.args[1], "value", None)
            if name in FORMER | DECLARED:
                yield node.lineno, name
        if isinstance(node, ast.Compare) and ast.unparse(node.left) == "type(callback).__name__":
            yield node.lineno, "type(callback).__name__"


def test_the_search_for_probes_finds_them():
    source = "getattr(other, 'aside', '')\nhasattr(other, 'retire')\ntype(callback).__name__ == 'DDP'\ngetattr(x, name)"
    assert sorted(probes(source)) == [(1, "aside"), (2, "retire"), (3, "type(callback).__name__")]


def test_no_declared_attribute_is_probed(root, project_files):
    folders = ("engine", "events", "callbacks", "integrations")
    paths = [path for path in project_files if path.suffix == ".py" and path.parts[0] in folders]
    found = [(str(path), name) for path in paths for _, name in probes((root / path).read_text(encoding="utf-8"))]
    assert found == [("events/composition.py", "local")], "a callback of any class may declare `local`"
