"""Figures of a run, of a VAE and of learned goals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from omg.evaluation import runs

BLUE = "#29629b"
COLOURS = ("#29629b", "#c0392b", "#277d5a", "#7850a0", "#be781e", "#5b6770", "#a83279", "#2a9d8f")


def pyplot() -> Any:
    """Imported when something is drawn: it takes a second, and most commands draw nothing."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    return plt


def plain(axes: Any, xlabel: str, ylabel: str, title: str) -> None:
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    axes.set_title(title, fontsize=9)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot().close(figure)
    return path


def learning_curve(folder: Path) -> Path | None:
    """Test return over environment steps, with every seed as a thin line if there are several."""
    steps, each = runs.curve(runs.points(folder), "test_return_mean")
    if len(steps) < 3:
        return None
    figure, axes = pyplot().subplots(figsize=(6, 3.6), layout="constrained")
    if each.shape[1] > 1:
        axes.plot(steps, each, color=BLUE, alpha=0.3, linewidth=1)
    axes.plot(steps, each.mean(1), color=BLUE, linewidth=2, marker="o", markersize=3)
    plain(axes, "environment steps", "test return", folder.name)
    return save(figure, folder / "curve.png")


def vae_figures(folder: Path, curve: list[dict[str, float]], states: np.ndarray, decoded: np.ndarray) -> None:
    """The losses over the updates, and some states beside their reconstructions."""
    figure, axes = pyplot().subplots(figsize=(6, 3.6), layout="constrained")
    for name, colour in (("recons_loss", BLUE), ("kl_loss", COLOURS[1])):
        axes.plot([p["updates"] for p in curve], [p[name] for p in curve], color=colour, label=name)
    axes.set_yscale("log")
    axes.legend(frameon=False)
    plain(axes, "updates", "loss", folder.name)
    save(figure, folder / "curve.png")

    figure, panels = pyplot().subplots(1, 3, figsize=(9, 4), layout="constrained")
    low, high = float(states.min()), float(states.max())
    for axes, values, title in zip(
        panels, (states, decoded, decoded - states), ("states", "reconstructions", "difference"), strict=True
    ):
        picture = axes.imshow(values, aspect="auto", vmin=low, vmax=high, cmap="viridis")
        axes.set_title(title, fontsize=9)
        axes.set_xlabel("feature")
    figure.colorbar(picture, ax=panels)
    save(figure, folder / "reconstructions.png")


def goal_figure(path: Path, latents: np.ndarray, reward: np.ndarray, goals: np.ndarray, title: str) -> None:
    """Events with a reward and the goals chosen among them, along the first two principal components."""
    middle = latents.mean(0)
    _, _, directions = np.linalg.svd(latents - middle, full_matrices=False)
    figure, axes = pyplot().subplots(figsize=(6, 4.5), layout="constrained")
    flat, chosen = ((x - middle) @ directions[:2].T for x in (latents[:3000], goals))
    dots = axes.scatter(*flat.T, s=5, c=reward[:3000], cmap="viridis", alpha=0.6)
    axes.scatter(*chosen.T, s=90, marker="*", color=COLOURS[1], edgecolor="white")
    figure.colorbar(dots, ax=axes, label="reward")
    plain(axes, "first principal component", "second", title)
    save(figure, path)
