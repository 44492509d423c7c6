"""The settings of HOP and HOP+ while they play."""

from __future__ import annotations

from dataclasses import dataclass

from omg.modules.goal_sets import GoalSettings
from omg.utils.settings import UserError


@dataclass(frozen=True)
class HopSettings(GoalSettings):
    simulations: int = 200
    goal_draws: int = 5
    train_simulations: int = 32
    train_goal_draws: int = 2
    c_puct: float = 1.0
    search_depth: int = 16
    hop_beta: float = 20.0
    hop_gamma: float = 0.95
    hop_hidden_dim: int = 64
    hop_alpha: float = 0.7
    surprise: float = 0.05
    inter_belief: bool = True
    intra_belief: bool = True
    use_goals: bool = True
    planning: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in (
            "search_depth",
            "simulations",
            "goal_draws",
            "train_simulations",
            "train_goal_draws",
            "hop_hidden_dim",
        ):
            if getattr(self, key) < 1:
                raise UserError(f"{key} is {getattr(self, key)}; it must be 1 or more.")
        for key in ("hop_alpha", "surprise", "hop_gamma"):
            if not 0 <= getattr(self, key) <= 1:
                raise UserError(f"{key} is {getattr(self, key)}; it goes from 0 to 1.")
