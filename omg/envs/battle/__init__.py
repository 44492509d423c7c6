"""SMAC's maps as a compiled world (`world.py`), from tables of maps and units (`maps.py`)."""

from omg.envs.battle.world import Battle, BattleSettings

__all__ = ["Battle", "BattleSettings"]
