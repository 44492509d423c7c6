"""Runs on disk: a catalogue of a results folder, and the curves of a run. Nothing here needs JAX.

A run is a folder with `metrics.jsonl`. What is damaged is listed with the reason, never left out.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from omg.utils.settings import UserError, nearest

METRICS, CONFIG, SUMMARY, EPISODE = "metrics.jsonl", "config.yaml", "summary.json", "episode.json"
INSIDE = {"checkpoints", "sacred", "tensorboard", "members"}
"""Folders in which no run lies."""
TAIL = 1 << 16
"""Bytes at the end of `metrics.jsonl` in which the newest points are looked for."""
SILENT = 60
"""A run whose Sacred record was not touched for so many seconds has ended."""
NOT_SETTINGS = {
    "name", "env_config", "seed", "seeds", "run_dir", "local_results_path", "resume", "devices", "coordinator", "hosts",
    "host", "use_tensorboard", "tracker", "mongo_url", "save_model", "save_model_interval", "keep_checkpoints",
    "save_replay", "save_replay_buffer", "use_cuda", "debug", "compilation_cache", "evaluate", "test_interval",
    "test_nepisode", "log_interval", "worker_timeout",
}  # fmt: skip
"""What may differ between runs of one experiment."""
SHOWN = 3
"""Settings in the name of a curve, at most."""
FastLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Record:
    """One run in a table."""

    path: str
    name: str = ""
    env: str = ""
    seed: int | None = None
    seeds: int = 1
    state: str = "damaged"
    """finished, running, stopped or damaged."""
    steps: int = 0
    t_max: int | None = None
    test_return: float | None = None
    focal_return: float | None = None
    seconds: float | None = None
    changed: float = 0.0
    """When the newest point was written, in seconds since 1970."""
    problem: str = ""
    config: dict[str, Any] = field(default_factory=dict, repr=False)

    def row(self) -> dict[str, Any]:
        """Without the configuration."""
        return {key: value for key, value in asdict(self).items() if key != "config"}


def find(root: Path) -> list[Path]:
    """Every run in a folder, in the order of their names."""
    if not root.is_dir():
        raise UserError(f"there is no folder {root}.")
    found = []
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in INSIDE and not name.startswith("."))
        if METRICS in files:
            found.append(Path(folder))
    return found


def read(folder: Path) -> Record:
    """What is known about a run. What cannot be read is named in `problem`."""
    record = Record(str(folder))
    try:
        record.config = config = _config(folder)
        record.name, record.env = str(config.get("name", "")), str(config.get("env_config") or config.get("env", ""))
        record.seed, record.seeds = int(config.get("seed", 0)), int(config.get("seeds", 1))
        record.t_max = int(config["t_max"]) if "t_max" in config else None
        record.changed = (folder / METRICS).stat().st_mtime
        for point in _tail(folder / METRICS):
            record.steps = int(point["t_env"])
            record.seconds = point.get("seconds", record.seconds)
            record.test_return = point.get("test_return_mean", record.test_return)
            record.focal_return = point.get("test_focal_return_mean", record.focal_return)
        summary = _json(folder / SUMMARY) if (folder / SUMMARY).exists() else None
        if summary is not None:
            record.seconds = summary.get("wall_seconds", record.seconds)
            record.test_return = summary.get("test_return_mean", record.test_return)
            record.focal_return = summary.get("test_focal_return_mean", record.focal_return)
        record.state = "finished" if summary is not None else state_of(folder)
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError, RecursionError) as error:
        record.state, record.problem = "damaged", f"{type(error).__name__}: {error}".split("\n")[0][:200]
    return record


def records(root: Path) -> list[Record]:
    return [read(folder) for folder in find(root)]


def points(folder: Path) -> list[dict[str, Any]]:
    """Every logged point of a run."""
    path = folder / METRICS
    if not path.is_file():
        raise UserError(f"{folder} holds no run: it has no {METRICS}.")
    found = []
    try:
        lines = path.read_text().splitlines()
        for number, line in enumerate(lines):
            try:
                point = json.loads(line)
                point["t_env"] + 0
            except (ValueError, TypeError, KeyError):
                if number == len(lines) - 1:
                    break  # a line that is being written
                raise
            found.append(point)
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise UserError(f"{path} is damaged in line {len(found) + 1}.") from error
    return found


def numbers_in(logged: Sequence[dict[str, Any]]) -> list[str]:
    """The names of what was logged, tests first."""
    names = {name for point in logged for name in point if not name.endswith("_seeds")}
    return sorted(names - {"t_env", "seconds", "episode"}, key=lambda name: (not name.startswith("test_"), name))


def curve(logged: Sequence[dict[str, Any]], metric: str, x: str = "t_env") -> tuple[np.ndarray, np.ndarray]:
    """The places and values of one number: `[point]` and `[point, seed]`."""
    each = [(point, point.get(f"{metric}_seeds") or [point.get(metric)]) for point in logged]
    having = [(p, values) for p, values in each if p.get(x) is not None and any(v is not None for v in values)]
    numbers = [[np.nan if v is None else float(v) for v in values] for _, values in having]
    places = np.array([float(point[x]) for point, _ in having])
    return places, np.array(numbers) if having else np.zeros((0, 0))


def groups(found: Sequence[Record], by: str) -> list[str]:
    """The name of the curve that each run belongs to.

    By `config`, runs that differ in nothing but their seeds share a curve; where the name and the environment do not
    tell two curves apart, the settings that differ follow. By `run`, each folder has its own.
    """
    if by == "run":
        return _short_paths([record.path for record in found])
    if by != "config":
        return [_group(record, by) for record in found]
    plain = [_settings(record.config) for record in found]
    names = [f"{record.name} on {record.env}" for record in found]
    differing = {
        name: _differing([own for own, of_own in zip(plain, names, strict=True) if of_own == name])
        for name in dict.fromkeys(names)
    }
    labels = []
    for name, own in zip(names, plain, strict=True):
        keys = differing[name]
        more = [f"and {len(keys) - SHOWN} more"] if len(keys) > SHOWN else []
        labels.append(", ".join([name, *(f"{key}={own.get(key)}" for key in keys[:SHOWN]), *more]))
    # Where the first few settings are not enough, a number tells the configurations apart.
    numbers: dict[str, list[dict[str, Any]]] = {}
    for label, own in zip(labels, plain, strict=True):
        if own not in numbers.setdefault(label, []):
            numbers[label].append(own)
    return [
        f"{label} ({numbers[label].index(own) + 1})" if len(numbers[label]) > 1 else label
        for label, own in zip(labels, plain, strict=True)
    ]


def differing_settings(found: Sequence[Record]) -> list[str]:
    """The settings that all of these runs have and in which they differ, seeds and folders aside."""
    several = [_settings(record.config) for record in found]
    return [key for key in _differing(several) if all(key in own for own in several)]


def _differing(several: Sequence[dict[str, Any]]) -> list[str]:
    keys = dict.fromkeys(key for own in several for key in own)
    return [key for key in keys if any(own.get(key) != several[0].get(key) for own in several)]


def _settings(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """What a run learns and how, flat: `env_args.food`. Not: seeds, and where and how it is kept."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if isinstance(value, dict):
            found |= _settings(value, f"{prefix}{key}.")
        elif prefix or key not in NOT_SETTINGS:
            found[prefix + key] = value
    return found


def _short_paths(paths: Sequence[str]) -> list[str]:
    """As many of the last folders of each path as tell it from the others."""
    parts = [Path(path).parts for path in paths]

    def short(own: tuple[str, ...]) -> str:
        for n in range(1, len(own)):
            if sum(other[-n:] == own[-n:] for other in set(parts)) == 1:
                return "/".join(own[-n:])
        return str(Path(*own))

    return [short(own) for own in parts]


def _group(record: Record, by: str) -> str:
    if by in ("name", "env", "seed", "state"):
        return str(getattr(record, by))
    value: Any = record.config
    for key in by.split("."):
        if not isinstance(value, dict) or key not in value:
            known = ["config", "run", "name", "env", "seed", *record.config]
            raise UserError(f"{record.path} has no setting {by}.{nearest(by, known)}")
        value = value[key]
    return f"{by}={value}"


def together(curves: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    """Several curves at common places `[point]`, `[point, seed of every run]`; each ends where its run ended."""
    curves = [(x, y) for x, y in curves if len(x)]
    if not curves:
        return np.zeros(0), np.zeros((0, 0))
    places = np.unique(np.concatenate([x for x, _ in curves]))
    columns = [
        np.where((places >= x[0]) & (places <= x[-1]), np.interp(places, x, seed), np.nan)
        for x, y in curves
        for seed in y.T
    ]
    return places, np.stack(columns, -1)


def mean_and_band(values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean over seeds, and mean ∓ 1.96 standard errors (nothing around it where there is one seed)."""
    count = np.isfinite(values).sum(-1)
    mean = np.nansum(values, -1) / np.maximum(count, 1)
    deviation = np.sqrt(np.nansum((values - mean[:, None]) ** 2, -1) / np.maximum(count - 1, 1))
    error = np.where(count > 1, 1.96 * deviation / np.sqrt(np.maximum(count, 1)), 0.0)
    mean = np.where(count > 0, mean, np.nan)
    return mean, mean - error, mean + error


def smooth(values: np.ndarray, weight: float) -> np.ndarray:
    """An exponential mean along the first axis; 0: none, near 1: much."""
    if not weight:
        return values
    out, last = np.array(values, float), np.zeros(values.shape[1:])
    total = np.zeros(values.shape[1:])
    for i, row in enumerate(values):
        last = weight * last + (1 - weight) * np.nan_to_num(row)
        total = weight * total + (1 - weight) * np.isfinite(row)
        out[i] = np.where(np.isfinite(row), last / np.maximum(total, 1e-12), np.nan)
    return out


# --- files


def _config(folder: Path) -> dict[str, Any]:
    config = yaml.load((folder / CONFIG).read_text(), FastLoader)
    if not isinstance(config, dict):
        raise ValueError(f"{CONFIG} is not key: value")
    return config


def _json(path: Path) -> dict[str, Any]:
    content = json.loads(path.read_text())
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


def _tail(path: Path) -> list[dict[str, Any]]:
    """The newest points, back to a test if there is one. A last line without an end is still being written."""
    window = TAIL
    while True:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(size - window, 0))
            lines = file.read().decode(errors="replace" if size > window else "strict").split("\n")
        whole = lines[:-1] if size <= window else lines[1:-1]
        found = [json.loads(line) for line in whole]
        if size <= window or any("test_return_mean" in point for point in found):
            return found
        window *= 4


def state_of(folder: Path) -> str:
    """Of a run without results: running, if Sacred's record says so and was touched recently; else stopped."""
    try:
        kept = ((path.stat().st_mtime, path) for path in folder.glob("sacred/*/run.json"))
        touched, newest = max(kept, default=(0.0, folder))
        if time.time() - touched >= SILENT:
            return "stopped"
        return "running" if _json(newest).get("status") == "RUNNING" else "stopped"
    except ValueError:
        return "running"  # it is being written
    except OSError:
        return "stopped"  # it was removed just now
