"""Figures from what a run left on disk."""

from __future__ import annotations

import json
from pathlib import Path


def learning_curve(folder: Path) -> Path | None:
    """Test return over steps, with every seed as a thin line where there are several."""
    points = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    tests = [p for p in points if p.get("test_return_mean") is not None]
    if len(tests) < 2:
        return None
    # Imported here: it takes a second, and most commands draw nothing.
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    steps = [p["t_env"] for p in tests]
    figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
    each = [p.get("test_return_mean_seeds") for p in tests]
    if all(each):
        axes.plot(steps, each, color="#29629b", alpha=0.3, linewidth=1)
    axes.plot(steps, [p["test_return_mean"] for p in tests], color="#29629b", linewidth=2, marker="o", markersize=3)
    axes.set_xlabel("steps in the world")
    axes.set_ylabel("test return")
    axes.set_title(folder.name, fontsize=9)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    path = folder / "curve.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path
