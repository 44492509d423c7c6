"""Where numbers and words go: `metrics.jsonl`, TensorBoard, Sacred; a progress bar, or plain lines."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

console = Console(stderr=True, highlight=False)
"""Everything but results: progress, notices, errors."""


def say(text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)


def show(numbers: dict[str, Any]) -> None:
    """A table of names and values; lists are left to the files."""
    table = Table(show_header=False)
    for key, value in numbers.items():
        if not isinstance(value, list):
            table.add_row(key, f"{value:,.4g}" if isinstance(value, float) else str(value))
    console.print(table)


class Logger:
    """One line per logged point in `metrics.jsonl`, and the same numbers as TensorBoard and Sacred want them."""

    def __init__(self, folder: Path, use_tensorboard: bool, sacred_run: Any = None, resume_at: int | None = None):
        self.path = folder / "metrics.jsonl"
        if resume_at is not None and self.path.exists():
            self._forget_after(resume_at)
        self.file = self.path.open("a")
        self.sacred_run = sacred_run
        self.events = _EventWriter(folder / "tensorboard") if use_tensorboard else None

    def log(self, t_env: int, stats: dict[str, Any]) -> None:
        # JSON has no NaN: a number that is not one is written as null.
        line = {"t_env": t_env} | {k: None if _is_nan(v) else v for k, v in stats.items()}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        scalars = {k: v for k, v in stats.items() if isinstance(v, (int, float))}
        if self.events:
            self.events.add(scalars, t_env)
        if self.sacred_run is not None:
            for name, value in scalars.items():
                self.sacred_run.log_scalar(name, value, t_env)

    def close(self) -> None:
        self.file.close()
        if self.events:
            self.events.close()

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget_after(self, t_env: int) -> None:
        """Drops what a killed run logged after the checkpoint it now goes on from, and a half-written last line."""
        kept = []
        for line in self.path.read_text().splitlines():
            try:
                point = json.loads(line)
            except ValueError:
                break
            if point["t_env"] <= t_env:
                kept.append(line)
        self.path.write_text("".join(line + "\n" for line in kept))


class _EventWriter:
    def __init__(self, folder: Path):
        # Imported here: it takes half a second, and listing or evaluating needs none of it.
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self.event, self.summary = Event, Summary
        self.writer = EventFileWriter(str(folder))

    def add(self, scalars: dict[str, float], step: int) -> None:
        values = [self.summary.Value(tag=name, simple_value=value) for name, value in scalars.items()]
        event = self.event(step=step, wall_time=time.time(), summary=self.summary(value=values))
        self.writer.add_event(event)

    def close(self) -> None:
        self.writer.close()


class ProgressReport:
    """How much is done, rate, return and time left while something long runs."""

    def __init__(self, title: str, total: int, done: int = 0, unit: str = "steps"):
        self.title, self.total, self.done, self.unit = title, total, done, unit
        self.bar: Progress | None = None
        self.text = ""
        if console.is_terminal:
            self.bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.percentage:>3.0f}% {task.fields[text]}"),
                TimeRemainingColumn(),
                console=console,
            )
            self.task = self.bar.add_task(title, total=total, completed=done, text="")

    def __enter__(self) -> ProgressReport:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.bar:
            self.bar.stop()

    def update(self, done: int, rate: float | None = None, value: float | None = None) -> None:
        self.done = done
        parts = [f"{min(done, self.total):,}/{self.total:,} {self.unit}"]
        if rate is not None:
            parts.append(f"{rate:,.0f}/s")
        if value is not None and not math.isnan(value):
            parts.append(f"return {value:.3f}")
        if self.bar is None and rate is not None:
            parts.append(f"{_duration(max(self.total - done, 0) / rate if rate > 0 else math.inf)} left")
        self.text = " · ".join(parts)
        if self.bar:
            self.bar.update(self.task, completed=done, text=self.text)

    def line(self) -> None:
        """A line of its own, where there is no bar to look at."""
        if self.bar is None and self.text:
            say(f"{self.title}: {self.text}")


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _is_nan(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
