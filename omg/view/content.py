"""What the page shows, read from a results folder: runs, curves, episodes, pools, benchmarks, cross-play.

Everything is addressed by its path below that folder. Files are read again only when they change.
"""

from __future__ import annotations

import csv
import json
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import omg
from omg.evaluation import plots, runs
from omg.evaluation.runs import EPISODE
from omg.evaluation.scores import estimate_scores, scores_of
from omg.utils.settings import UserError

POOL, BENCHMARK, CROSSPLAY, EMBEDDINGS = "pool.json", "benchmark.csv", "crossplay.csv", "embeddings.json"
ZOO = Path(omg.__file__).parent / "zoo"
"""The partners that ship with the package."""
MOST = 100 << 20
"""Files larger than this are not sent."""


class Content:
    """A results folder as the page sees it. Methods return what JSON can hold; mistakes are `UserError`s."""

    def __init__(self, root: Path):
        self.root = root
        self._kept: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._lock = threading.Lock()

    # --- runs

    def runs(self) -> dict[str, Any]:
        rows = []
        for folder in runs.find(self.root):
            record = self._record(folder)
            if record.state in ("running", "stopped"):
                # Whether a run goes on is told by the clock, not by these files.
                record = replace(record, state=runs.state_of(folder))
            rows.append(record.row() | {"id": self._id(folder), "path": self._id(folder)})
        return {"root": str(self.root), "runs": rows}

    def _record(self, folder: Path) -> runs.Record:
        files = [folder / name for name in (runs.METRICS, runs.CONFIG, runs.SUMMARY)]
        return self._cached("run", folder, files, partial(runs.read, folder))

    def config(self, name: str) -> dict[str, Any]:
        folder = self._run(name)
        record = runs.read(folder)
        if record.problem:
            raise UserError(f"{name} is damaged: {record.problem}")
        return {"id": name, "config": record.config}

    def curves(self, names: Sequence[str], metric: str | None, by: str, x: str, smooth: float) -> dict[str, Any]:
        """The same curves as `omg plot` draws: mean and band over seeds."""
        folders = [self._run(name) for name in names]
        if not folders:
            return {"metric": metric, "metrics": [], "curves": []}
        logged = [self._points(folder) for folder in folders]
        common = set.intersection(*(set(runs.numbers_in(points)) for points in logged))
        shown, curves = plots.curves_of(folders, metric if metric in common else None, by, x, self._points)
        out = []
        for curve in curves:
            mean, low, high = runs.mean_and_band(runs.smooth(curve.y, smooth))
            numbers = {"x": curve.x, "mean": mean, "low": low, "high": high}
            out.append({"name": curve.name, "seeds": curve.y.shape[1], **{k: _plain(v) for k, v in numbers.items()}})
        differing = runs.differing_settings([self._record(folder) for folder in folders])
        metrics = sorted(common, key=runs.numbers_in(logged[0]).index)
        return {"metric": shown, "metrics": metrics, "differing": differing, "curves": out}

    def figure(self, names: Sequence[str], metric: str | None, by: str, x: str, smooth: float, path: Path) -> Path:
        shown, curves = plots.curves_of([self._run(name) for name in names], metric, by, x)
        return plots.draw(curves, shown, x, path, smooth)

    # --- episodes

    def episodes(self) -> dict[str, Any]:
        """Recorded episodes, the newest first."""
        found = sorted(self._files({EPISODE}), key=lambda path: path.stat().st_mtime, reverse=True)
        return {
            "episodes": [{"id": self._id(p), "changed": p.stat().st_mtime, "size": p.stat().st_size} for p in found]
        }

    def episode(self, name: str) -> dict[str, Any]:
        path = self._inside(name)
        if path.name != EPISODE or not path.is_file():
            raise UserError(f"there is no episode {name!r}.")
        if path.stat().st_size > MOST:
            raise UserError(f"{name} is larger than {MOST >> 20} MiB.")
        try:
            content = json.loads(path.read_text())
            complete = {"frames", "board", "size", "seats", "actions", "rewards", "alive", "shown"} <= set(content)
        except (ValueError, RecursionError, TypeError) as error:
            raise UserError(f"{name} is damaged.") from error
        if not complete:
            raise UserError(f"{name} is damaged.")
        return content

    # --- partners

    def partners(self) -> dict[str, Any]:
        """Pools (the zoo last), benchmarks, embeddings, cross-play; `problems` names what cannot be read."""
        readers = {
            POOL: ("pools", _pool), BENCHMARK: ("benchmarks", _benchmark), CROSSPLAY: ("crossplay", _crossplay),
            EMBEDDINGS: ("embeddings", _embeddings),
        }  # fmt: skip
        out: dict[str, Any] = {place: [] for place, _ in readers.values()} | {"problems": []}
        for path in self._files(set(readers)):
            place, read = readers[path.name]
            try:
                content = self._cached(place, path, [path], partial(read, path))
                out[place].append({"id": self._id(path.parent), **content})
            except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
                problem = f"{type(error).__name__}: {error}".split("\n")[0][:200]
                out["problems"].append({"id": self._id(path), "problem": problem})
        for path in sorted(ZOO.glob(f"*/{POOL}")):
            out["pools"].append(
                {"id": f"zoo:{path.parent.name}", **self._cached("pools", path, [path], partial(_pool, path))}
            )
        return out

    # --- files

    def _id(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def _run(self, name: str) -> Path:
        return self.root if name == "." else self._inside(name)

    def _inside(self, name: str) -> Path:
        """A path below the folder. Links that lead out of it, and hidden files, are not read."""
        path = (self.root / name).resolve()
        root = self.root.resolve()
        if not path.is_relative_to(root) or any(part.startswith(".") for part in path.relative_to(root).parts):
            raise UserError(f"{name!r} is not in {self.root}.")
        return self.root / name

    def _points(self, folder: Path) -> list[dict[str, Any]]:
        return self._cached("points", folder, [folder / runs.METRICS], partial(runs.points, folder))

    def _files(self, names: set[str]) -> Iterator[Path]:
        for folder, inner, files in os.walk(self.root):
            inner[:] = sorted(n for n in inner if n not in runs.INSIDE and not n.startswith("."))
            yield from (Path(folder) / name for name in sorted(names & set(files)))

    def _cached(self, what: str, path: Path, files: Sequence[Path], read: Callable[[], Any]) -> Any:
        stamps = [(f.stat().st_mtime_ns, f.stat().st_size) if f.exists() else None for f in files]
        key = what, str(path)
        with self._lock:
            kept = self._kept.get(key)
        if kept is None or kept[0] != stamps:
            kept = stamps, read()
            with self._lock:
                self._kept[key] = kept
        return kept[1]


def _pool(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    shown = ("name", "algorithm", "split", "seed", "steps", "return_mean")
    members = [{key: member.get(key) for key in shown} for member in content["members"]]
    return {"env": str(content["env"]), "members": members}


def _benchmark(path: Path) -> dict[str, Any]:
    """For every task and method the interquartile mean of its scores, with its interval over seeds."""
    with path.open() as file:
        rows = list(csv.DictReader(file))
    tasks: dict[str, dict[str, list[dict[str, str]]]] = {}
    for row in rows:
        tasks.setdefault(row["task"], {}).setdefault(row["method"], []).append(row)
    return {
        "tasks": [{"task": task, "methods": [_method(*m) for m in methods.items()]} for task, methods in tasks.items()]
    }


def _method(name: str, rows: Sequence[dict[str, str]]) -> dict[str, Any]:
    partners, scores = scores_of(rows)
    found = estimate_scores(scores)
    each = [{"partner": p, "score": round(float(s), 4)} for p, s in zip(partners, scores.mean(0), strict=True)]
    return {
        "method": name, "score": found.iqm, "low": found.low, "high": found.high, "seeds": found.n, "partners": each,
    }  # fmt: skip


def _crossplay(path: Path) -> dict[str, Any]:
    with path.open() as file:
        head, *rows = list(csv.reader(file))
    names = head[1:]
    values = [[float(value) for value in row[1:]] for row in rows]
    if any(len(row) != len(names) for row in values):
        raise ValueError("rows of different length")
    return {"names": names, "agents": [row[0] for row in rows], "values": values}


def _embeddings(path: Path) -> dict[str, Any]:
    """Mean embeddings of episodes in two dimensions, by partner; `at` is that of the episode that is recorded."""
    content = json.loads(path.read_text())
    members = []
    for member in content["members"]:
        points = [[float(x), float(y)] for x, y in member["points"]]
        recorded = path.parent / "episodes" / str(member["name"]) / EPISODE
        at = None
        if recorded.is_file() and "recorded" in member:
            x, y = member["recorded"]
            at = [float(x), float(y)]
        members.append({
            "name": str(member["name"]), "split": str(member["split"]), "points": points,
            "recorded": recorded.is_file(), "at": at,
        })  # fmt: skip
    return {"title": str(content["title"]), "members": members}


def _plain(values: np.ndarray) -> list[float | None]:
    return [None if not np.isfinite(v) else float(f"{v:.6g}") for v in values]
