"""The `trainbus` command line: plan, preview, watch and compare runs, and manage checkpoints and plugins."""

from __future__ import annotations

COMMANDS = {
    "preview": ("preview", "show what the training of a program will do"),
    "profile": ("profile", "measure which changes make the training of a program faster"),
    "status": ("status", "show the state of a run"),
    "tell": ("tell", "ask a running training to save, evaluate, log, stop or change a setting"),
    "report": ("report", "show runs as one HTML file"),
    "trace": ("recordings", "show what a run announced and decided"),
    "diff": ("recordings", "find the first event at which two runs part"),
    "replay": ("recordings", "give a callback the calls of a recorded run, without a model"),
    "rerun": ("rerun", "make the failed step of a capsule again"),
    "checkpoints": ("checkpoints", "list, verify, prune or export checkpoints"),
    "compose": ("compose", "print the callbacks of a run as Python and as YAML"),
    "plan": ("plan", "show the memory that each sharding strategy takes"),
    "plugins": ("plugins", "list and check the installed plugins"),
    "new-plugin": ("new_plugin", "write an installable package with a callback of your own"),
    "run": ("run", "run a program of transformers with this Trainer"),
}
"""Command -> its module in this folder and its line in the help. Only the module of the chosen command is imported.

Installed packages add their own commands; see `main.py`.
"""
