"""Work in stages: each is one command that leaves a mark, so that the same plan goes on where it was stopped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from omg.utils.logging import say

Run = Callable[[list[str]], int]


class Stage(NamedTuple):
    """One command, and the file by which one sees that it was carried out."""

    title: str
    words: list[str]
    mark: Path


def one_by_one(plan: Sequence[Stage], run: Run) -> int:
    for i, stage in enumerate(plan):
        if stage.mark.exists():
            continue
        say(f"[{i + 1}/{len(plan)}] {stage.title}: omg {' '.join(stage.words)}", "bold")
        status = run(resumed(stage))
        if status:
            return status
        if not stage.mark.exists():
            stage.mark.write_text("done")
    return 0


def resumed(stage: Stage) -> list[str]:
    """A run that was stopped goes on; everything else starts, or knows by itself what is left."""
    run_dir = next((word for word in stage.words if word.startswith("--run_dir=")), "")
    if stage.words[0] == "train" and (Path(run_dir.removeprefix("--run_dir=")) / "config.yaml").exists():
        return ["train", "--resume", run_dir]
    return stage.words
