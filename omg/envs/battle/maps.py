"""Maps and units: reads and checks the YAML files, and builds tables of the units of both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import numpy as np
import yaml

from omg.utils.settings import UserError, choose, fill_exactly

LOOPS_PER_SECOND = 22.4
SIZE = 32.0
"""Width and height of a map in cells."""
MAX_UNITS = 100
"""The largest number of units of a side."""


@dataclass(frozen=True)
class UnitType:
    """A type of unit. Times are in seconds at the game speed 'faster', distances in cells; `size` is a diameter."""

    hp: float
    size: float
    speed: float
    damage: float = 0.0
    cooldown: float = 1.0
    attack_range: float = 0.1
    armor: float = 0.0
    shield: float = 0.0
    attacks: int = 1
    hp_regen: float = 0.0
    energy: float = 0.0
    starting_energy: float = 0.0
    plane: Literal["ground", "air"] = "ground"
    targeter: Literal["one", "heal", "kamikaze", "laser_beam"] = "one"
    splash_radius: float = 0.0
    splash_width: float = 0.0
    splash_height: float = 0.0
    minimum_scan_range: float = 5.0
    attributes: tuple[str, ...] = ()
    bonuses: dict[str, float] = field(default_factory=dict)
    valid_targets: tuple[str, ...] = ("ground",)

    def __post_init__(self) -> None:
        if self.hp <= 0 or self.size <= 0 or self.speed < 0 or self.cooldown < 0 or self.attacks < 1:
            raise UserError("a unit needs hp and size above 0, no negative speed or cooldown, and 1 attack or more.")

    @property
    def crosses_cliffs(self) -> bool:
        """Whether the unit can stand between rooms: units that fly, and colossi."""
        return self.plane == "air" or self.targeter == "laser_beam"


@dataclass(frozen=True)
class Side:
    """The units of one side: type, name and initial position of each."""

    types: tuple[UnitType, ...]
    names: tuple[str, ...]
    start: np.ndarray

    def __len__(self) -> int:
        return len(self.types)

    def column(self, name: str) -> np.ndarray:
        """One property of every unit."""
        return np.array([getattr(unit, name) for unit in self.types], np.float32)

    def flag(self, **wanted: Any) -> np.ndarray:
        """Which units have all of these properties."""
        return np.array([all(getattr(unit, k) == v for k, v in wanted.items()) for unit in self.types])

    @property
    def shielded(self) -> bool:
        return any(unit.shield for unit in self.types)


@dataclass(frozen=True)
class BattleMap:
    name: str
    allies: Side
    enemies: Side
    episode_limit: int
    rooms: np.ndarray
    type_names: tuple[str, ...]
    """The unit types that observations encode; empty if each side has only one type."""

    @property
    def n_actions(self) -> int:
        return 6 + len(self.enemies)

    @property
    def units(self) -> tuple[UnitType, ...]:
        return self.allies.types + self.enemies.types


@cache
def _shipped(name: str) -> dict[str, Any]:
    return yaml.safe_load(resources.files("omg.envs.battle").joinpath(name).read_text())


def map_names() -> list[str]:
    return list(_shipped("maps.yaml"))


def load_map(name: str, map_file: str | None = None) -> BattleMap:
    """A map of the package, or of a YAML file with `maps` and optionally `units`."""
    maps, units = _shipped("maps.yaml"), _shipped("units.yaml")
    if map_file is not None:
        extra = _read(Path(map_file))
        maps, units = {**maps, **(extra.get("maps") or {})}, {**units, **(extra.get("units") or {})}
    entry = choose(maps, name, "map_name")
    missing = [key for key in ("allies", "enemies", "episode_limit", "start") if key not in (entry or {})]
    if missing:
        raise UserError(f"map {name} lacks the key {missing[0]}.")
    unknown = sorted(set(entry) - {"allies", "enemies", "episode_limit", "start", "rooms"})
    if unknown:
        raise UserError(
            f"map {name} has an unknown key {unknown[0]!r}; the keys are allies, enemies, episode_limit, start, rooms."
        )
    sides = {side: _side(name, entry, side, units) for side in ("ally", "enemy")}
    mixed = any(len(set(side.names)) > 1 for side in sides.values())
    types = tuple(dict.fromkeys(sides["ally"].names + sides["enemy"].names)) if mixed else ()
    rooms = np.array(entry.get("rooms") or [], np.float32).reshape(-1, 4)
    if max(len(side) for side in sides.values()) > MAX_UNITS:
        raise UserError(f"map {name}: a side has more than {MAX_UNITS} units.")
    limit = entry["episode_limit"]
    if not isinstance(limit, int) or limit < 1:
        raise UserError(f"map {name}: episode_limit is {limit}; it must be an integer of 1 or more.")
    return BattleMap(name, sides["ally"], sides["enemy"], limit, rooms, types)


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"env_args.map_file: cannot read {path}.") from error
    except yaml.YAMLError as error:
        raise UserError(f"{path} is not YAML: {error}".replace("\n", " ")) from error
    if not isinstance(content, dict) or not set(content) <= {"maps", "units"}:
        raise UserError(f"{path} must have the keys maps and units, or one of them.")
    return content


def _side(map_name: str, entry: Mapping[str, Any], side: Literal["ally", "enemy"], units: Mapping[str, Any]) -> Side:
    """The units of a side in the order of `allies` or `enemies`, placed according to the start groups."""
    counts = entry["allies" if side == "ally" else "enemies"]
    places: dict[str, list[np.ndarray]] = {name: [] for name in counts}
    types = {name: _unit(name, units) for name in counts}
    centre = {
        which: np.mean([group["at"] for group in entry["start"] if (group["side"] == side) == (which == "own")], 0)
        for which in ("own", "other")
    }
    for group in entry["start"]:
        if group["side"] != side:
            continue
        members = [name for name, n in group["units"].items() for _ in range(n)]
        if any(name not in types for name in members):
            raise UserError(f"map {map_name}: a start group has units that the {side} side does not have.")
        ranks = rows(np.array(group["at"]), [types[m].size for m in members], centre["other"] - centre["own"])
        for name, at in zip(members, ranks, strict=True):
            places[name].append(at)
    for name, n in counts.items():
        if len(places[name]) != n:
            raise UserError(
                f"map {map_name}: the {side} side has {n} {name}, but its start groups have {len(places[name])}."
            )
    names = tuple(name for name, n in counts.items() for _ in range(n))
    start = np.concatenate([np.stack(places[name]) for name, n in counts.items() if n])
    return Side(tuple(types[name] for name in names), names, start.astype(np.float32))


def _unit(name: str, units: Mapping[str, Any]) -> UnitType:
    entry = dict(choose(units, name, "unit"))
    for key in ("attributes", "valid_targets"):
        if key in entry:
            entry[key] = tuple(entry[key])
    missing = sorted({"hp", "size", "speed"} - set(entry))
    if missing:
        raise UserError(f"unit {name} lacks the key {missing[0]}.")
    return fill_exactly(UnitType, entry, f"unit {name}: ")


def rows(at: np.ndarray, sizes: list[float], towards: np.ndarray) -> np.ndarray:
    """Positions of units in ranks around a point: twice as wide as deep, with gaps of half a unit, facing `towards`."""
    n, step = len(sizes), 1.5 * max(sizes)
    wide = int(np.ceil(np.sqrt(2 * n)))
    rank, file = np.divmod(np.arange(n), wide)
    in_rank = np.minimum(wide, n - rank * wide)
    back = (rank - (np.ceil(n / wide) - 1) / 2) * step
    across = (file - (in_rank - 1) / 2) * step
    axis = int(abs(towards[1]) > abs(towards[0]))
    places = np.zeros((n, 2))
    places[:, axis] = -back * (1 if towards[axis] >= 0 else -1)
    places[:, 1 - axis] = across
    return np.clip(at + places, 0.5, SIZE - 0.5)
