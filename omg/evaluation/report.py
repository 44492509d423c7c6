"""Results with the members of a pool: a table, a CSV file and figures."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from omg.evaluation.encounters import MODEL, Result
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.evaluation.statistics import Estimate, estimate
from omg.opponents.pool import Pool
from omg.utils.files import write_json
from omg.utils.logging import console

SHOWN = ("return", "focal_return", "ep_length", "win_rate", *MODEL)


def by_split(pool: Pool, seeds: Sequence[Sequence[Result]]) -> dict[str, dict[str, Estimate]]:
    """For every split of the pool and every measure: an estimate over seeds, with members as tasks."""
    splits = sorted({pool.members[met.member].split for met in seeds[0]})
    groups = {split: [split] for split in splits} | {"unseen": [s for s in splits if s != "train"]}
    result: dict[str, dict[str, Estimate]] = {}
    for name, members in groups.items():
        rows = [[met for met in seed if pool.members[met.member].split in members] for seed in seeds]
        if rows[0] and not (name == "unseen" and len(members) < 2):
            # A game that never terminates before the time limit has no win rate.
            won = any(met.numbers.get("win_rate", 0) > 0 for seed in seeds for met in seed)
            measures = [m for m in rows[0][0].numbers if m != "win_rate" or won]
            result[name] = {m: estimate(np.array([[met.numbers[m] for met in row] for row in rows])) for m in measures}
    return result


def write(
    folder: Path,
    pool: Pool,
    seeds: Sequence[Sequence[Result]],
    numbers: Sequence[int],
    title: str,
    recorded: Mapping[str, np.ndarray] | None = None,
) -> dict[str, dict[str, Estimate]]:
    """Table, CSV, figure, embeddings in two dimensions; returns the estimates.

    `numbers` are the seeds themselves; `recorded` are the embeddings of recorded episodes, by member.
    """
    folder.mkdir(parents=True, exist_ok=True)
    estimates = by_split(pool, seeds)
    several = "mean [95 % interval over seeds]" if len(seeds) > 1 else "mean (one seed)"
    measures = [m for m in (*SHOWN, *next(iter(estimates.values()))) if m in next(iter(estimates.values()))]
    measures = list(dict.fromkeys(measures))
    splits = list(estimates)
    for start in range(0, len(splits), 2):
        # Two splits per table, so that it fits 80 columns.
        part = [estimates[split] for split in splits[start : start + 2]]
        table = Table("", *splits[start : start + 2], title=f"{title}: {several}")
        for measure in measures:
            table.add_row(measure, *(str(e[measure]) for e in part))
        table.add_row("return (interquartile mean)", *(f"{e['return'].iqm:.3f}" for e in part))
        console.print(table)
    with (folder / "opponents.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["member", "algorithm", "split", "seed", *measures])
        for seed, results in zip(numbers, seeds, strict=True):
            for met in results:
                member = pool.members[met.member]
                values = [f"{met.numbers[m]:.6g}" for m in measures]
                writer.writerow([member.name, member.algorithm, member.split, seed, *values])
    write_json(folder / "partners.json", plain_numbers(estimates))
    bars(folder / "opponents.png", pool, seeds, title)
    embeddings(folder / "embeddings.png", pool, seeds[0], title, recorded or {})
    return estimates


def plain_numbers(estimates: Mapping[str, Mapping[str, Estimate]]) -> dict[str, Any]:
    return {split: {m: e._asdict() for m, e in numbers.items()} for split, numbers in estimates.items()}


def bars(path: Path, pool: Pool, seeds: Sequence[Sequence[Result]], title: str) -> None:
    """The return with each member, coloured by split."""
    met = sorted(seeds[0], key=lambda m: (pool.members[m.member].split, pool.members[m.member].name))
    means = {
        m.member: np.array([next(x for x in s if x.member == m.member).numbers["return"] for s in seeds]) for m in met
    }
    splits = sorted({pool.members[m.member].split for m in met})
    figure, axes = pyplot().subplots(figsize=(max(6, 0.28 * len(met)), 4), layout="constrained")
    for x, m in enumerate(met):
        member, values = pool.members[m.member], means[m.member]
        colour = COLOURS[splits.index(member.split)]
        axes.bar(x, values.mean(), color=colour, yerr=values.std() if len(values) > 1 else None, capsize=2)
    for i, split in enumerate(splits):
        axes.bar(0, 0, color=COLOURS[i], label=split)
    axes.set_xticks(range(len(met)), [pool.members[m.member].name for m in met], rotation=90, fontsize=7)
    axes.legend(frameon=False, fontsize=8)
    plain(axes, "", "return", title)
    save(figure, path)


def embeddings(path: Path, pool: Pool, met: Sequence[Result], title: str, recorded: Mapping[str, np.ndarray]) -> None:
    """Every episode's mean embedding along the first two principal components, coloured by opponent.

    The file beside the figure also says where the recorded episodes lie.
    """
    points = np.concatenate([m.embeddings for m in met])
    if points.shape[1] < 2:
        return
    centre = points.mean(0)
    centred = points - centre
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    flat = centred @ directions[:2].T
    ends = np.cumsum([len(m.embeddings) for m in met])
    split = np.split(np.round(flat, 4), ends[:-1])
    listed: list[dict[str, Any]] = [
        {"name": pool.members[m.member].name, "split": pool.members[m.member].split, "points": points.tolist()}
        for m, points in zip(met, split, strict=True)
    ]
    for member in listed:
        if member["name"] in recorded:
            member["recorded"] = np.round((recorded[member["name"]] - centre) @ directions[:2].T, 4).tolist()
    write_json(path.with_suffix(".json"), {"title": title, "members": listed})
    figure, axes = pyplot().subplots(figsize=(7, 5), layout="constrained")
    colours, start = pyplot().get_cmap("tab20"), 0
    for i, m in enumerate(met):
        end = start + len(m.embeddings)
        axes.scatter(*flat[start:end].T, s=6, color=colours(i % 20), alpha=0.6, label=pool.members[m.member].name)
        start = end
    axes.legend(frameon=False, fontsize=6, ncols=2, loc="center left", bbox_to_anchor=(1, 0.5), markerscale=2)
    plain(axes, "first principal component", "second", f"embeddings: {title}")
    save(figure, path)


def comparison(path: Path, results: Mapping[str, dict[str, dict[str, Estimate]]], measure: str, title: str) -> None:
    """Methods side by side, one group of bars per split. With one seed there are no intervals."""
    splits = list(next(iter(results.values())))
    figure, axes = pyplot().subplots(figsize=(7, 3.8), layout="constrained")
    width = 0.8 / len(results)
    for i, (method, numbers) in enumerate(results.items()):
        found = [numbers[split][measure] for split in splits]
        below, above = [e.mean - e.low for e in found], [e.high - e.mean for e in found]
        x = np.arange(len(splits)) + i * width
        errors = [below, above] if found[0].n > 1 else None
        axes.bar(x, [e.mean for e in found], width, yerr=errors, capsize=2, color=COLOURS[i], label=method)
    axes.set_xticks(np.arange(len(splits)) + 0.4 - width / 2, splits)
    axes.legend(frameon=False, fontsize=8, ncols=3)
    plain(axes, "", measure, title)
    save(figure, path)


def heat_map(path: Path, names: Sequence[str], values: np.ndarray, title: str) -> Any:
    figure, axes = pyplot().subplots(figsize=(1.2 + 0.8 * len(names), 1 + 0.7 * len(names)), layout="constrained")
    picture = axes.imshow(values, cmap="viridis")
    for i, row in enumerate(values):
        for j, value in enumerate(row):
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color="white", fontsize=8)
    axes.set_xticks(range(len(names)), names, rotation=45, ha="right", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_xlabel("the others")
    axes.set_ylabel("the agent")
    axes.set_title(title, fontsize=9)
    figure.colorbar(picture, ax=axes)
    save(figure, path)
