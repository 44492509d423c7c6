"""`omg plot RUN…`: learning curves of several runs in one figure."""

from __future__ import annotations

from pathlib import Path

from omg.commands.common import known_options
from omg.config import Command
from omg.evaluation import plots, runs
from omg.utils.files import check_writable
from omg.utils.settings import UserError, convert

SUMMARY = """\
Draws learning curves: the mean over seeds with a band of ±1.96 standard errors, one curve for each group of runs. A
folder that holds several runs stands for all of them.

options:
  --by=config              what makes a group: config (all settings but seeds), run (every folder), seed, or any
                           setting, such as lr or env_args.grid_size
  --metric=NAME            what is drawn; default: the test return
  --x=steps                steps or seconds
  --smooth=0               weight of the past in an exponential mean, below 1
  --to=curves.png          the file to write: .png, .svg or .pdf"""
EXAMPLES = [
    "omg plot results/a results/b",
    "omg plot results --by=lr --metric=test_return_mean --to=lr.svg",
    "omg plot results/a --metric=loss --x=seconds --smooth=0.9",
]


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known_options(command, ("by", "metric", "x", "smooth", "to"))
    if not command.words:
        raise UserError("plot needs runs: omg plot results/a results/b.")
    folders = [folder for word in command.words for folder in runs.find(Path(word))]
    if not folders:
        raise UserError(f"there are no runs in {', '.join(command.words)}.")
    smooth = convert(command.get("smooth", 0.0), float, "smooth")
    if not 0 <= smooth < 1:
        raise UserError(f"smooth is {smooth}; it must be 0 or more, and below 1.")
    path = Path(str(command.get("to", "curves.png")))
    if path.suffix not in (".png", ".svg", ".pdf"):
        raise UserError(f"--to names a file that ends in .png, .svg or .pdf, not {path.name!r}.")
    check_writable(path.parent)
    metric = command.get("metric")
    x = str(command.get("x", "steps"))
    name, curves = plots.curves_of(
        list(dict.fromkeys(folders)), None if metric is None else str(metric), str(command.get("by", "config")), x
    )
    print(plots.draw(curves, name, x, path, smooth))
    return 0
