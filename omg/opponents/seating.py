"""Who sits where: a team's name and a pool, turned into seats around the focal agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from omg.config import env_words
from omg.envs.multiagentenv import Spec
from omg.opponents.pool import Kind, Member, Pool
from omg.opponents.run_pool import RunPool, is_run
from omg.opponents.scripted import SPLITS
from omg.runners.team_runner import Opponents
from omg.utils.settings import UserError
from omg.utils.teams import Group, check_seats, parse_team, trained_group


@dataclass(frozen=True)
class SeatingSettings:
    multi_algs: bool = False
    train_alg: str | None = None
    pool: str | None = None
    team: str | None = None
    opponents_per_collection: int = 4
    bench_pool: int = 10
    carry_over: bool = False

    def __post_init__(self) -> None:
        for key in ("opponents_per_collection", "bench_pool"):
            if getattr(self, key) < 1:
                raise UserError(f"{key} is {getattr(self, key)}; it must be 1 or more.")


class Seating(NamedTuple):
    """The trained agents' seats and the others', all as places after the focal agent."""

    offsets: tuple[int, ...]
    opponents: tuple[Opponents, ...]


def pool_folder(config: Mapping[str, Any]) -> Path:
    """The pool that a run uses: the one it names, or the world's own under the results."""
    named = config.get("pool")
    return Path(str(named)) if named else Path(str(config["local_results_path"])) / "pools" / str(config["env"])


RULES = "rules"
"""`--pool=rules`: the world's written rules, without any files."""


def open_pool(config: Mapping[str, Any]) -> Pool:
    if config.get("pool") == RULES:
        return _written(config)
    folder = pool_folder(config)
    run = is_run(folder)
    if not run and not (folder / "pool.json").exists():
        usual = Path("results") / "pools" / str(config["env"])
        named = "" if folder == usual else f" --pool={folder}"
        raise UserError(f"there is no pool of opponents in {folder}. Make one: omg pool{named} {env_words(config)}")
    pool = RunPool(folder) if run else Pool.load(folder)
    pool.check_world(config)
    return pool


def _written(config: Mapping[str, Any]) -> Pool:
    world = str(config["env"])
    if world not in SPLITS:
        raise UserError(f"{world} has no written rules; {', '.join(SPLITS)} have some. Train a pool: omg pool.")
    members = [Member(rule, rule, "train") for rule in SPLITS[world].train]
    members += [Member(rule, rule, "non_homologue") for rule in SPLITS[world].test]
    return Pool(Path(RULES), world, dict(config.get("env_args") or {}), members)


def seat(
    config: Mapping[str, Any], spec: Spec, algorithms: Sequence[str], kinds: Sequence[Kind] | None = None
) -> Seating:
    """`kinds` stands in for a pool on disk: everybody who is not trained comes from it."""
    name = str(config.get("team") or config["name"])
    if config.get("multi_algs"):
        groups = parse_team(name, algorithms)
    else:
        groups = [Group(spec.n_agents - 1, "any"), Group(1, name)] if spec.n_agents > 1 else [Group(1, name)]
    check_seats(groups, spec.n_agents, name, spec.name)
    trained = trained_group(groups, config.get("train_alg") if config.get("multi_algs") else None, name)
    if spec.n_agents < 2:
        raise UserError(f"{spec.name} has one agent here: there are no others to play with.")
    starts = [sum(group.seats for group in groups[:i]) for i in range(len(groups))]

    def offsets(i: int) -> tuple[int, ...]:
        seats = range(starts[i], starts[i] + groups[i].seats)
        return tuple((seat - starts[trained]) % spec.n_agents for seat in seats)

    pool = None if kinds else open_pool(config)
    opponents = []
    for i, group in enumerate(groups):
        if i != trained:
            opponents.append(Opponents(offsets(i), tuple(kinds or _members(pool, spec, group))))
    return Seating(offsets(trained), tuple(opponents))


def _members(pool: Pool | None, spec: Spec, group: Group) -> list[Kind]:
    assert pool is not None
    ids = pool.ids(["train"], group.algorithm)
    if not ids:
        there = sorted({m.algorithm for m in pool.members if m.split == "train"})
        raise UserError(
            f"the pool in {pool.folder} has no {group.algorithm} to train with: it has {', '.join(there) or 'nobody'}."
        )
    return pool.kinds(spec, ids)
