"""The table of scores: what every agent earned with every partner, its scores, a table and a figure."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv
from omg.evaluation.encounters import Encounter
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.evaluation.scores import difference, estimate_scores, probability_of_improvement, scores_of
from omg.evaluation.statistics import Estimate
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents.pool import Pool
from omg.opponents.scripted import usual
from omg.utils.files import make_folder, write_json
from omg.utils.logging import ProgressReport, console, say
from omg.utils.settings import UserError

BOUNDS = ("random", "scripted", "blind", "oracle", "best_response")
"""What every method is compared with."""
COLUMNS = ("task", "method", "partner", "seed", "return", "score")


class TaskBounds(NamedTuple):
    """The returns that scores are measured by: `[seed, partner]` for every bound."""

    partners: list[str]
    strongest: str
    """The scripted policy that is called `scripted`."""
    returns: dict[str, np.ndarray]

    def write(self, path: Path) -> None:
        returns = {name: x.tolist() for name, x in self.returns.items()}
        write_json(path, {"partners": self.partners, "scripted": self.strongest, "returns": returns})

    @classmethod
    def read(cls, path: Path) -> TaskBounds:
        try:
            content = json.loads(path.read_text())
            returns = {str(name): np.array(x, float) for name, x in content["returns"].items()}
            return cls(list(content["partners"]), str(content["scripted"]), returns)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged.") from error


def best_returns(path: Path, measure: str, partners: int) -> np.ndarray:
    """What each best response earned with its partner in the last test of its training."""
    content = json.loads(path.read_text())
    key = f"test_{measure}_mean"
    each = content.get(f"{key}_seeds") or [content[key]]
    if len(each) != partners:
        raise UserError(f"{path.parent} has {len(each)} best responses to {partners} partners: remove the folder.")
    return np.array(each)


def scripted_returns(
    env: MultiAgentEnv, pool: Pool, ids: Sequence[int], episodes: int, measure: str
) -> dict[str, np.ndarray]:
    """Every scripted policy of the environment in the agent's seat, with each of these partners."""
    policies = {name: make(env.spec) for name, make in scripted_REGISTRY[env.spec.name].items() if usual(name)}
    mac = ScriptedMAC(env.spec, *policies.values())
    found: dict[str, dict[int, float]] = {name: {} for name in policies}
    groups = pool.groups(env.spec, ids)
    with ProgressReport("scripted policies", len(groups) * len(policies), unit="groups") as progress:
        for g, group in enumerate(groups):
            encounter = Encounter(env, mac, group, episodes)
            for i, name in enumerate(policies):
                met = encounter.play(jnp.int32(i), jax.random.key(17))
                found[name] |= {result.member: result.numbers[measure] for result in met}
                progress.update(g * len(policies) + i + 1)
    return {name: np.array([by_member[i] for i in ids]) for name, by_member in found.items()}


def returns_of(path: Path, partners: Sequence[str], measure: str) -> np.ndarray:
    """`[seed, partner]` from the table that `omg evaluate` wrote."""
    with path.open() as file:
        rows = [row for row in csv.DictReader(file) if row["member"] in partners]
    seeds = list(dict.fromkeys(row["seed"] for row in rows))
    values = {(row["seed"], row["member"]): float(row[measure]) for row in rows}
    return np.array([[values[seed, partner] for partner in partners] for seed in seeds])


def show(
    task: str,
    order: Sequence[str],
    estimates: Mapping[str, Estimate],
    scores: Mapping[str, np.ndarray],
    strongest: str,
    partners: int,
) -> None:
    seeds = max(e.n for e in estimates.values())
    interval = f"[95 % interval, {seeds} seeds]" if seeds > 1 else "(one seed)"
    table = Table(title=f"{task}: score with {partners} unseen partners")
    for column in ("", f"interquartile mean {interval}", "mean", "better than base"):
        table.add_column(column)
    for name in order:
        e = estimates[name]
        improves = ""
        if "base" in scores and name not in (*BOUNDS, "base"):
            p = probability_of_improvement(scores[name], scores["base"])
            improves = f"{p.mean:.2f}" + (f" [{p.low:.2f}, {p.high:.2f}]" if p.n > 1 else "")
        label = f"scripted ({strongest})" if name == "scripted" else name
        table.add_row(label, shown(e), f"{e.mean:.3f}", improves)
    console.print(table)
    if "blind" in estimates:
        knowing = estimates["oracle"].mean - estimates["blind"].mean
        say(f"value of knowing the partner (oracle minus blind): {knowing:.3f}")


def show_together(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str], methods: Sequence[str]) -> None:
    """Every method over several tasks, with the rows of `benchmark.csv`."""
    scores = {
        method: [scores_of([r for r in rows if (r["task"], r["method"]) == (task, method)])[1] for task in tasks]
        for method in methods
    }
    seeds = max(len(x) for found in scores.values() for x in found)
    interval = "[95 % interval]" if seeds > 1 else "(one seed)"
    table = Table(title=f"{', '.join(tasks)} together: mean of the tasks' interquartile means {interval}")
    for column in ("", "score", "minus base"):
        table.add_column(column)
    for method, found in scores.items():
        above = difference(found, scores["base"]) if "base" in scores and method != "base" else None
        table.add_row(method, shown(estimate_scores(*found)), shown(above, "+") if above else "")
    console.print(table)


def shown(e: Estimate, sign: str = "") -> str:
    return f"{e.iqm:{sign}.3f}" + (f" [{e.low:{sign}.3f}, {e.high:{sign}.3f}]" if e.n > 1 else "")


def draw(path: Path, task: str, order: Sequence[str], estimates: Mapping[str, Estimate]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 0.6 + 0.35 * len(order)), layout="constrained")
    for y, name in enumerate(order):
        e = estimates[name]
        errors = [[e.iqm - e.low], [e.high - e.iqm]] if e.n > 1 else None
        axes.barh(y, e.iqm, xerr=errors, capsize=2, color=COLOURS[5] if name in BOUNDS else COLOURS[0])
    axes.set_yticks(range(len(order)), order)
    axes.invert_yaxis()
    plain(axes, "score (0: random play, 1: best response)", "", f"{task}, unseen partners")
    save(figure, path)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows that earlier calls wrote, of other tasks."""
    if not path.exists():
        return []
    with path.open() as file:
        return [{**row, "return": float(row["return"]), "score": float(row["score"])} for row in csv.DictReader(file)]


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    make_folder(path.parent)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows({**row, "return": f"{row['return']:.6g}", "score": f"{row['score']:.6g}"} for row in rows)
