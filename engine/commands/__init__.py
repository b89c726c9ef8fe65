"""The `trainbus` command line: plan, preview, watch and compare runs, and manage checkpoints and plugins."""

from __future__ import annotations

COMMANDS = {
    "preview": ("preview", "show what the training of a program will do"),
    "profile": ("profile", "measure which changes make the training of a program faster"),
    "status": ("status", "show the state of a run"),
    "tell": ("tell", "ask a running training to save, evaluate, log, stop or change a setting"),
    "report": ("report", "show runs as one HTML file"),
    "trace": ("recordings", "show the events and the decisions of a recorded run"),
    "diff": ("recordings", "find the first event at which two recorded runs differ"),
    "replay": ("recordings", "call a callback as a recorded run would, without a model"),
    "rerun": ("rerun", "repeat the failed step that a capsule holds"),
    "checkpoints": ("checkpoints", "list, verify, prune or export checkpoints"),
    "compose": ("compose", "print the callbacks of a run as Python and as YAML"),
    "plan": ("plan", "show the memory that each way to shard needs"),
    "plugins": ("plugins", "list and check the installed plugins"),
    "new-plugin": ("new_plugin", "write a package with a new callback, its tests and a CI file"),
    "run": ("run", "run a program of transformers with this Trainer"),
}
"""Command -> its module in this folder and its line in the help. Only the module of the chosen command is imported.

Installed packages add their own commands; see `main.py`.
"""
