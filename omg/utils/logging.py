"""Output: messages, tables and progress on the terminal; numbers to `metrics.jsonl`, TensorBoard and Sacred."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from omg.utils.device import cache_folder
from omg.utils.files import write_json, write_text
from omg.utils.trackers import Tracker

console = Console(stderr=True, highlight=False)
"""Everything but results: progress, notices, errors, tables."""


def say(text: str, style: str | None = None) -> None:
    console.print(text, style=style, markup=False, soft_wrap=True)


def show(numbers: dict[str, Any]) -> None:
    """A table of names and values; lists are left to the files."""
    table = Table(show_header=False)
    for key, value in numbers.items():
        if not isinstance(value, (list, dict)):
            table.add_row(key, f"{value:,.4g}" if isinstance(value, float) else str(value))
    console.print(table)


@contextlib.contextmanager
def compiling(what: str, progress: ProgressReport | None = None) -> Iterator[None]:
    """Says that a program is being compiled, and how many seconds it took last time."""
    path = cache_folder().parent / "compile_seconds.json"
    try:
        seconds = json.loads(path.read_text())
    except (OSError, ValueError):
        seconds = {}
    last = seconds.get(what) if isinstance(seconds, dict) else None
    text = "compiling…" + (f" (it took {last:.0f} s last time)" if isinstance(last, (int, float)) else "")
    if progress is not None and progress.bar is not None:
        progress.status(text)
    else:
        say(f"{what}: {text}")
    started = time.perf_counter()
    yield
    took = round(time.perf_counter() - started, 1)
    # A cache folder that cannot be written costs the hint, not the run.
    with contextlib.suppress(OSError):
        write_json(path, {**(seconds if isinstance(seconds, dict) else {}), what: took})
    if progress is not None and progress.bar is not None:
        progress.status("")


class Logger:
    """Logged points: one line in `metrics.jsonl`, and the same numbers for TensorBoard and Sacred.

    A value is a number, or a list with one number per seed. TensorBoard groups the scalars by `train/`, `test/` and
    `time/`, and shows every seed as a line of its own.
    """

    def __init__(
        self,
        folder: Path,
        use_tensorboard: bool,
        sacred_run: Any = None,
        resume_at: int | None = None,
        seeds: list[int] | None = None,
        tracker: Tracker | None = None,
    ):
        self.tracker = tracker
        self.path = folder / "metrics.jsonl"
        if resume_at is not None and self.path.exists():
            self._forget_after(resume_at)
        self.file = self.path.open("a")
        self.sacred_run = sacred_run
        self.seeds = seeds or [1]
        several = len(self.seeds) > 1
        names = ["mean", *(f"seed_{seed}" for seed in self.seeds)] if several else [""]
        self.events = [_EventWriter(folder / "tensorboard" / name) for name in names] if use_tensorboard else []

    def log(self, t_env: int, point: dict[str, Any]) -> None:
        means = {name: float(np.mean(x)) if isinstance(x, list) else x for name, x in point.items()}
        each = {f"{name}_seeds": x for name, x in point.items() if isinstance(x, list) and len(x) > 1}
        # JSON has no NaN: a number that is not finite is written as null.
        line = {"t_env": t_env} | {name: _finite(x) for name, x in (means | each).items()}
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()
        for i, events in enumerate(self.events):
            values = means if i == 0 else {n: x[i - 1] for n, x in point.items() if isinstance(x, list)}
            events.add({group(name): x for name, x in values.items()}, t_env)
        if self.sacred_run is not None:
            for name, value in means.items():
                self.sacred_run.log_scalar(name, value, t_env)
        if self.tracker is not None:
            self.tracker.log(t_env, means)

    def close(self) -> None:
        self.file.close()
        for events in self.events:
            events.close()
        if self.tracker is not None:
            self.tracker.close()

    def __enter__(self) -> Logger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _forget_after(self, t_env: int) -> None:
        """Drops the points that a killed run logged after the checkpoint it resumes from, and a half-written line."""
        kept = []
        for line in self.path.read_text(errors="replace").splitlines():
            try:
                point = json.loads(line)
                if point["t_env"] <= t_env:
                    kept.append(line)
            except (ValueError, KeyError, TypeError):
                break
        write_text(self.path, "".join(line + "\n" for line in kept))


TIME = ("env_steps_per_second", "wall_seconds", "episode", "updates")


def group(name: str) -> str:
    """The TensorBoard tag of a logged number."""
    if name.startswith("test_"):
        return f"test/{name.removeprefix('test_')}"
    return f"{'time' if name in TIME else 'train'}/{name}"


class _EventWriter:
    def __init__(self, folder: Path):
        # Imported here: it takes half a second, and most commands do not need it.
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
    """Progress of long work: how much is done, rate, return and time left."""

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

    def status(self, text: str) -> None:
        """A word beside the bar."""
        if self.bar:
            self.bar.update(self.task, text=text)

    def update(
        self, done: int, rate: float | None = None, value: float | None = None, focal: float | None = None
    ) -> None:
        """`value` is the team's mean return, `focal` the focal agent's own."""
        self.done = done
        words = [f"{min(done, self.total):,}/{self.total:,} {self.unit}"]
        if rate is not None:
            words.append(f"{rate:,.0f}/s")
        if value is not None and not math.isnan(value):
            words.append(f"return {value:.3f}")
        if focal is not None and not math.isnan(focal):
            words.append(f"focal return {focal:.3f}")
        if self.bar is None and rate is not None:
            words.append(f"{_duration(max(self.total - done, 0) / rate if rate > 0 else math.inf)} left")
        self.text = " · ".join(words)
        if self.bar:
            self.bar.update(self.task, completed=done, text=self.text)

    def line(self) -> None:
        """A line of its own, where there is no bar."""
        if self.text:
            self.note(self.text)

    def note(self, text: str) -> None:
        """Any text as a line of its own, where there is no bar."""
        if self.bar is None:
            say(f"{self.title}: {text}")


class JobTable:
    """The states of many jobs, live where there is a terminal."""

    def __init__(self, titles: list[str]):
        self.states = dict.fromkeys(titles, "waiting")
        self.since = dict.fromkeys(titles, 0.0)
        self.live = (
            Live(get_renderable=self._table, console=console, refresh_per_second=1) if console.is_terminal else None
        )

    def update(self, title: str, state: str) -> None:
        self.states[title], self.since[title] = state, time.monotonic()

    def _table(self) -> Table:
        table = Table(show_edge=False, pad_edge=False)
        for column in ("job", "state", "for"):
            table.add_column(column)
        counts = Counter(state for state in self.states.values())
        table.caption = ", ".join(f"{count} {state}" for state, count in counts.items())
        shown = [title for title, state in self.states.items() if state not in ("waiting", "done")]
        for title in shown[:30]:
            table.add_row(title, self.states[title], _duration(time.monotonic() - self.since[title]))
        return table

    def __enter__(self) -> JobTable:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.live:
            self.live.stop()


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(x) for x in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
