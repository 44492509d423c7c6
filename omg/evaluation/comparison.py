"""Methods side by side: a table, a Markdown file and figures from the results of several evaluations."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from omg.evaluation import report
from omg.evaluation.statistics import Estimate
from omg.utils.files import write_text
from omg.utils.logging import console, say
from omg.utils.settings import UserError

TITLES = {
    "battle_won": "win rate",
    "return": "team return",
    "focal_return": "focal return",
    "ep_length": "steps per episode",
}


def compare(name: str, folder: Path, stages: Sequence[str]) -> int:
    """Compares the evaluations in the folders of these stages. Returns the exit status."""
    results = {stage.removesuffix("_partners"): _read(folder / stage / "partners.json") for stage in stages}
    first = next(iter(results.values()))
    splits = sorted(first, key=lambda s: (s != "train", s != "unseen", s))
    unseen = "unseen" if "unseen" in splits else splits[-1]
    seeds = first[unseen]["return"].n
    # Battles are won or lost; other environments are compared by their return.
    main = "battle_won" if "battle_won" in first[unseen] else "return"
    measures = [main, *(m for m in ("return", "focal_return", "ep_length") if m != main)]
    interval = f"mean [95 % interval over {seeds} seeds]" if seeds > 1 else "mean (one seed)"
    for part in (splits[:2], splits[2:]):
        if part:
            table = Table(title=f"{name}, {TITLES[main]}: {interval}")
            for column in ("method", *part):
                table.add_column(column)
            for method, numbers in results.items():
                table.add_row(method, *(str(numbers[split][main]) for split in part))
            console.print(table)
    columns = [f"{TITLES[main]}, {split}" for split in splits]
    columns += [f"{what}, {unseen}" for what in ("interquartile mean", *(TITLES[m] for m in measures[1:]))]
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for method, numbers in results.items():
        cells = [str(numbers[split][main]) for split in splits]
        cells += [f"{numbers[unseen][main].iqm:.3f}", *(str(numbers[unseen][m]) for m in measures[1:])]
        lines.append("| " + " | ".join([method, *cells]) + " |")
    write_text(folder / "comparison.md", "\n".join(lines) + "\n")
    for m in measures:
        report.comparison(folder / f"comparison_{m}.png", results, m, f"{name}: {TITLES[m]}")
    say(f"table, figures and replays are in {folder}")
    return 0


def _read(path: Path) -> dict[str, dict[str, Estimate]]:
    try:
        content = json.loads(path.read_text())
        return {split: {m: Estimate(**e) for m, e in numbers.items()} for split, numbers in content.items()}
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(f"there are no results in {path}: run the evaluation again.") from error
