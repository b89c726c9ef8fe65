"""The command `trainbus plugins`: list and check the installed plugins, and write the manifest of a package."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from typing import Any

from ...events.contract import CONTRACT, fits_contract
from ...events.installed import COMMAND_GROUP, Plugin, duplicates, installed, manifest_of
from . import COMMANDS
from .json_output import print_json, versioned
from .output_files import write_file

_ACTIONS = ("list", "manifest")


def add_to(commands: Any) -> None:
    """Add the command `plugins` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "plugins",
        description="`trainbus plugins` is short for `trainbus plugins list`.",
    )
    actions = parser.add_subparsers(required=True, dest="action", metavar="ACTION")
    shown = actions.add_parser(
        "list",
        help="list the installed plugins; nothing is imported",
        description="List the installed plugins. A plugin whose package ships a manifest is described in full without "
        "importing it. --check imports every plugin, and exits with status 1 if one has a problem.",
    )
    shown.add_argument("--json", action="store_true", help="print JSON")
    shown.add_argument("--check", action="store_true", help="import every plugin and check it")
    shown.set_defaults(do=_list)
    manifest = actions.add_parser("manifest", help="write the plugin manifest of a package that offers plugins")
    manifest.add_argument(
        "package", metavar="PACKAGE", help="an installed package, for example installed in editable mode"
    )
    manifest.add_argument(
        "--print", dest="only_print", action="store_true", help="print the manifest instead of writing a file"
    )
    manifest.set_defaults(do=_manifest)


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command line. If they name no action, as in `plugins --json`, insert the action `list`."""
    if words[:1] == ["plugins"] and (len(words) == 1 or (words[1].startswith("--") and words[1] != "--help")):
        return ["plugins", "list", *words[1:]]
    return words


def _list(options: argparse.Namespace) -> int:
    plugins = installed().values()
    with redirect_stdout(sys.stderr):  # a plugin may print when it is imported
        rows = [
            _checked(each) if options.check else {**listing(each, each.manifest()), "problems": []} for each in plugins
        ]
        commands = [_command(each, options.check) for each in installed(COMMAND_GROUP).values()]
    if options.json:
        print_json(versioned({"contract": CONTRACT, "plugins": rows, "commands": commands}))
    else:
        print("\n".join(_text(rows, commands)))
    return 1 if options.check and any(row["problems"] for row in [*rows, *commands]) else 0


def _command(plugin: Plugin, check: bool) -> dict[str, Any]:
    problems = [
        f"{other.origin} offers the same command: uninstall one of the two"
        for other in duplicates(COMMAND_GROUP).get(plugin.name, [])
        if other.package != plugin.package
    ]
    if plugin.name in COMMANDS:
        problems.append("trainbus has a command of this name, so this one is never called; rename it")
    elif check:
        from .main import problem_of

        problems += filter(None, [problem_of(plugin)])
    row = {"name": plugin.name, "package": plugin.package, "version": plugin.version, "value": plugin.value}
    return {**row, "problems": problems}


def _checked(plugin: Plugin) -> dict[str, Any]:
    from ..arguments.plugins.manifest import described, problems_of  # it imports torch

    try:
        problems = problems_of(plugin)
    except Exception as error:  # for example an error of a metaclass
        problems = [f"it cannot be inspected: {type(error).__name__}: {error}"]
    try:
        row = described(plugin)
    except Exception:
        row = plugin.manifest()  # type: ignore[assignment]
    return {**listing(plugin, row), "problems": problems}


def listing(plugin: Plugin, row: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the data of a plugin for `trainbus plugins --json`.

    Args:
        plugin: the plugin.
        row: the description of the plugin, from its manifest or its import; None if both are missing.
    """
    known = dict(row or {})
    requires = known.get("requires", "")
    return {
        "name": plugin.name,
        "package": plugin.package,
        "version": plugin.version,
        "value": plugin.value,
        "file": plugin.file,
        "described": row is not None,
        "doc": known.get("doc", ""),
        "auto": known.get("auto"),
        "stage": known.get("stage"),
        "handlers": known.get("handlers"),
        "events": known.get("events", {}),
        "options": known.get("options"),
        "requires": requires,
        "fits": _fits(requires),
        "conflicts": known.get("conflicts", []),
        "contract": manifest_of(plugin.module).get("contract"),
    }


def _fits(requires: Any) -> bool | None:
    try:
        return fits_contract(requires)
    except (ValueError, AttributeError, TypeError):
        return None


def _text(rows: list[dict[str, Any]], commands: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        yield f"No plugin is installed. This trainbus has the plugin contract {CONTRACT}."
    for row in rows:
        yield f"{row['name']}  {row['package']} {row['version']}  {_joins(row)}".rstrip()
        yield f"  {row['value']}  {row['file']}".rstrip()
        if row["doc"]:
            yield f"  {row['doc']}"
        if not row["described"]:
            yield "  no manifest: `trainbus plugins --check` imports it"
        yield from _details(row)
        yield from (f"  problem: {problem}" for problem in row["problems"])
    for command in commands:
        yield f"trainbus {command['name']}  {command['package']} {command['version']}  command"
        yield f"  {command['value']}"
        yield from (f"  problem: {problem}" for problem in command["problems"])


def _joins(row: Mapping[str, Any]) -> str:
    return {True: "joins every run (auto)", False: "joins a run that names it"}.get(row["auto"], "")


def _details(row: Mapping[str, Any]) -> Iterator[str]:
    if row["handlers"]:
        yield f"  handlers: {', '.join(f'{event} ({stage})' for event, stage in row['handlers'].items())}"
    if row["events"]:
        yield f"  own events: {', '.join(row['events'])}"
    if row["options"]:
        options = (
            f"{name}: {said['type']}" + ("" if said["required"] else f" = {said.get('default')}")
            for name, said in row["options"].items()
        )
        yield f"  options: {', '.join(options)}"
    if row["requires"]:
        fits = {True: "", False: f", which this trainbus ({CONTRACT}) is not"}.get(row["fits"], ", which is malformed")
        yield f"  requires contract {row['requires']}{fits}"
    if row["conflicts"]:
        yield f"  conflicts with {', '.join(row['conflicts'])}"


def _manifest(options: argparse.Namespace) -> int:
    from ..arguments.plugins.manifest import manifest_for  # it imports torch

    with redirect_stdout(sys.stderr):  # a plugin may print when it is imported
        manifest, path = manifest_for(options.package)
    text = json.dumps(manifest, indent=2) + "\n"
    if options.only_print:
        print(text, end="")
    else:
        write_file(path, text)
        print(f"wrote {path}. Ship it with the package: list *.json in its package data.")
    return 0
