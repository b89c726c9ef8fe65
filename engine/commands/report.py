"""The command `trainbus report`: show one or more runs in an HTML file, as JSON, or as an image."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ...events.errors import ArgumentError
from .json_output import print_json
from .output_files import write_file


def add_to(commands: Any) -> None:
    """Add the command `report` to the subcommands of `trainbus`."""
    parser = commands.add_parser(
        "report",
        help="show runs as one HTML file",
        description="Write curves, evaluations, checkpoints, decisions, time and arguments of one or more runs to one "
        "HTML file, which loads no other file. A run may be in progress or have crashed. The folders of transformers' "
        "Trainer work too.",
    )
    parser.add_argument("folders", type=Path, nargs="+", metavar="DIR", help="the output folder of a run")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="the HTML file; default: DIR/report.html")
    parser.add_argument("--title", help="the title of the page; default: the names of the runs")
    parser.add_argument("--png", type=Path, metavar="FILE", help="write the curves as a PNG instead; needs matplotlib")
    parser.add_argument("--json", action="store_true", help="print the data of the report as JSON instead")
    parser.set_defaults(do=_report)


def _report(options: argparse.Namespace) -> int:
    # Imported here, so that the other commands start without these modules.
    from ..api.report.collect import collect
    from ..api.report.schema import report_data

    if options.png is not None and (options.out is not None or options.json):
        other = "--json" if options.json else "--out"
        raise ArgumentError(f"--png writes an image instead of {other}. Use two commands.")
    runs = [collect(folder) for folder in options.folders]
    if options.json:
        print_json(report_data(runs))
        return 0
    if options.png is not None:
        from ..api.report.images import png_of

        write_file(options.png, png_of(runs))
        print(f"wrote {options.png}")
        return 0
    from ..api.report.page import render

    out = options.out or options.folders[0] / "report.html"
    write_file(out, render(runs, options.title))
    print(f"wrote {out}")
    return 0
