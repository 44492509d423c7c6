"""Learning curves of several runs in one figure: the mean over seeds with a band, one curve for each group of runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from omg.evaluation import runs
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.utils.settings import UserError, nearest

AXES = {"steps": ("t_env", "environment steps"), "seconds": ("seconds", "seconds")}


class Curve(NamedTuple):
    """One group of runs: places, and a value for every seed of every run (`[point, seed]`)."""

    name: str
    x: np.ndarray
    y: np.ndarray


def curves_of(
    folders: Sequence[Path],
    metric: str | None = None,
    by: str = "config",
    x: str = "steps",
    read: Callable[[Path], list[dict[str, Any]]] = runs.points,
) -> tuple[str, list[Curve]]:
    """The number that is shown (`metric`, or the best one that all runs have), and a curve for every group."""
    if x not in AXES:
        raise UserError(f"--x is steps or seconds, not {x!r}.")
    logged = {folder: read(folder) for folder in folders}
    common = [set(runs.numbers_in(points)) for points in logged.values()]
    shared = set.intersection(*common) if common else set()
    known = sorted(shared)
    if metric is None:
        usual = ("test_focal_return_mean", "test_return_mean", "return_mean", "loss")
        metric = next((name for name in usual if name in shared), None)
        if metric is None:
            raise UserError(f"these runs have no number in common; name one: --metric of {', '.join(known) or 'none'}.")
    elif metric not in shared:
        raise UserError(f"not all of these runs have {metric}.{nearest(metric, known)} All have: {', '.join(known)}.")
    groups: dict[str, list[Any]] = {}
    names = runs.groups([runs.read(folder) for folder in logged], by)
    for name, points in zip(names, logged.values(), strict=True):
        groups.setdefault(name, []).append(runs.curve(points, metric, AXES[x][0]))
    curves = [Curve(name, *runs.together(several)) for name, several in groups.items()]
    if not any(len(curve.x) for curve in curves):
        lacking = " Runs of older versions have no seconds." if x == "seconds" else ""
        raise UserError(f"{metric} has no values over {x} in these runs.{lacking}")
    return metric, [curve for curve in curves if len(curve.x)]


def draw(curves: Sequence[Curve], metric: str, x: str, path: Path, smooth: float = 0.0, title: str = "") -> Path:
    figure, axes = pyplot().subplots(figsize=(7, 4.2), layout="constrained")
    for i, curve in enumerate(curves):
        mean, low, high = runs.mean_and_band(runs.smooth(curve.y, smooth))
        colour = COLOURS[i % len(COLOURS)]
        seeds = f" ({curve.y.shape[1]} seeds)" if curve.y.shape[1:] > (1,) else ""
        axes.plot(curve.x, mean, color=colour, linewidth=2, label=f"{curve.name}{seeds}")
        if curve.y.shape[1:] > (1,):
            axes.fill_between(curve.x, low, high, color=colour, alpha=0.18, linewidth=0)
    if len(curves) > 1 or title == "":
        axes.legend(frameon=False, fontsize=8)
    plain(axes, AXES[x][1], metric.replace("_", " "), title)
    return save(figure, path)
