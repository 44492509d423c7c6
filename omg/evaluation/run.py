"""One run on disk: its configuration, results, logged points and learning curve."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omg import config
from omg.evaluation import plots, runs
from omg.utils.settings import UserError

if TYPE_CHECKING:
    import pandas as pd


class Picture(type(Path())):  # type: ignore[misc]
    """The path of a picture, which a notebook shows."""

    def _repr_png_(self) -> bytes | None:
        return self.read_bytes() if self.suffix == ".png" else None

    def _repr_svg_(self) -> str | None:
        return self.read_text() if self.suffix == ".svg" else None


@dataclass(frozen=True)
class SavedRun:
    """A run on disk."""

    path: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "path", Path(self.path))

    @property
    def config(self) -> dict[str, Any]:
        """The merged configuration."""
        return config.read_yaml(self.path / "config.yaml")

    @property
    def summary(self) -> dict[str, Any]:
        """The results: the last test, for several seeds also each of them. Only finished runs have one."""
        path = self.path / "summary.json"
        if not path.exists():
            raise UserError(f"the run in {self.path} is not finished: it has no summary.json.")
        return json.loads(path.read_text())

    @property
    def metrics(self) -> pd.DataFrame:
        """Everything that was logged, a row for each point."""
        import pandas as pd

        return pd.DataFrame(runs.points(self.path))

    def plot(self, metric: str | None = None, to: str | Path | None = None, smooth: float = 0.0) -> Picture:
        """Writes a learning curve (`curve.png` in the run's folder, or `to`); notebooks show it as a picture."""
        name, curves = plots.curves_of([self.path], metric)
        path = plots.draw(curves, name, "steps", Path(to or self.path / "curve.png"), smooth, self.path.name)
        return Picture(path)
