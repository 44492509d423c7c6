"""SMAC's maps as a compiled environment (`env.py`), built from tables of maps and units (`maps.py`)."""

from omg.envs.battle.env import Battle, BattleSettings

__all__ = ["Battle", "BattleSettings"]
