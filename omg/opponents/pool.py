"""Pools: populations of frozen opponents on disk (`pool.json` and one file per member), and as stacked networks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

from omg.controllers import BasicMAC, RuleMAC
from omg.envs.multiagentenv import Spec
from omg.opponents.scripted import REGISTRY as rule_REGISTRY
from omg.utils.checkpoints import checksum, flatten, unflatten
from omg.utils.settings import UserError, choose

MANIFEST = "pool.json"
Split = Literal["train", "homologue", "non_homologue"]
ARCHITECTURE = (
    "policy_model",
    "rnn_hidden_dim",
    "rnn_cell",
    "agent_output_type",
    "action_selector",
    "obs_last_action",
    "obs_agent_id",
)
"""The settings that a frozen policy needs to act."""


@dataclass(frozen=True)
class Member:
    """One opponent: a network at one stage of its training, or a written rule."""

    name: str
    algorithm: str
    split: Split
    seed: int | None = None
    steps: int | None = None
    return_mean: float | None = None
    architecture: dict[str, Any] = field(default_factory=dict)
    file: str | None = None
    checksum: str | None = None

    @property
    def is_rule(self) -> bool:
        return self.file is None


@dataclass(frozen=True)
class PoolSettings:
    """What `omg pool` makes: algorithms × seeds × stages, and rules."""

    pool_algs: list | None = None
    pool_test_algs: list | None = None
    pool_train_seeds: int = 1
    pool_test_seeds: int = 2
    pool_stages: list | None = None
    pool_rules: list | None = None
    pool_test_rules: list | None = None


class Kind(NamedTuple):
    """Members that one compiled program can play: the same architecture, or all written rules."""

    mac: Any
    policies: Any
    ids: tuple[int, ...]

    @property
    def size(self) -> int:
        return len(self.ids)


class Pool:
    """A pool's manifest. Networks are read when they are asked for, and checked against their checksums."""

    def __init__(
        self,
        folder: Path,
        world: str,
        env_args: dict[str, Any],
        members: Sequence[Member] = (),
        recipe: dict[str, Any] | None = None,
    ):
        self.folder = folder
        self.recipe = recipe or {}
        self.world = world
        self.env_args = env_args
        self.members = list(members)

    @classmethod
    def load(cls, folder: Path) -> Pool:
        try:
            content = json.loads((folder / MANIFEST).read_text())
            members = [Member(**entry) for entry in content["members"]]
            return cls(folder, content["world"], content["env_args"], members, content["recipe"])
        except FileNotFoundError as error:
            raise UserError(f"there is no pool in {folder}: make one with omg pool --env-config=…") from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / MANIFEST} is damaged: make the pool again with omg pool.") from error

    def save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        names = [member.name for member in self.members]
        assert len(set(names)) == len(names), "every member is in one split only"
        content: dict[str, Any] = {"world": self.world, "env_args": self.env_args, "recipe": self.recipe}
        content = content | {"members": [asdict(m) for m in self.members]}
        temporary = self.folder / f".{MANIFEST}"
        temporary.write_text(json.dumps(content, indent=1))
        temporary.rename(self.folder / MANIFEST)

    def check_world(self, config: Mapping[str, Any]) -> None:
        """A pool is of one world with one set of settings."""
        env_args = config.get("env_args") or {}
        if self.world != config["env"]:
            raise UserError(
                f"the pool in {self.folder} is of {self.world}, this run is of {config['env']}: choose another --pool."
            )
        differ = [key for key in {*self.env_args, *env_args} if self.env_args.get(key) != env_args.get(key)]
        if differ:
            key = sorted(differ)[0]
            raise UserError(
                f"the pool in {self.folder} was made with env_args.{key}={self.env_args.get(key)}, this run has "
                f"{env_args.get(key)}: make one for it with omg pool, or choose another --pool."
            )

    def ids(self, splits: Sequence[str], algorithm: str = "any") -> list[int]:
        """Places of the members of these splits, of one algorithm or all."""
        found = []
        for i, member in enumerate(self.members):
            named = algorithm == "any" or member.algorithm == algorithm or (algorithm == "rules" and member.is_rule)
            if member.split in splits and named:
                found.append(i)
        return found

    def kinds(self, spec: Spec, ids: Sequence[int]) -> list[Kind]:
        """These members as few stacks as their architectures allow."""
        groups: dict[str, list[int]] = {}
        for i in ids:
            member = self.members[i]
            key = "rules" if member.is_rule else json.dumps(member.architecture, sort_keys=True)
            groups.setdefault(key, []).append(i)
        return [self._rules(spec, g) if key == "rules" else self._learned(spec, g) for key, g in groups.items()]

    def _rules(self, spec: Spec, ids: list[int]) -> Kind:
        known = choose(rule_REGISTRY, spec.name, "world with written rules")
        rules = [choose(known, self.members[i].algorithm, "rule")(spec) for i in ids]
        return Kind(RuleMAC(spec, *rules), jnp.arange(len(rules)), tuple(ids))

    def _learned(self, spec: Spec, ids: list[int]) -> Kind:
        mac = BasicMAC(spec, self.members[ids[0]].architecture)
        like = jax.eval_shape(mac.init_agent, jax.random.key(0))
        networks = [unflatten(self._read(self.members[i]), like, self.members[i].name) for i in ids]
        return Kind(mac, jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *networks), tuple(ids))

    def _read(self, member: Member) -> dict[str, np.ndarray]:
        assert member.file is not None
        path = self.folder / member.file
        if not path.is_file():
            raise UserError(f"the pool in {self.folder} has lost {member.file}: make it again with omg pool.")
        if checksum(path) != member.checksum:
            raise UserError(f"the pool in {self.folder} is damaged: {member.file} was cut off or altered.")
        return load_file(path)

    def add_network(self, agent: Any, config: Mapping[str, Any], **about: Any) -> None:
        """Writes one trained network and enters it."""
        architecture = {key: config[key] for key in ARCHITECTURE}
        name = f"{about['algorithm']}-{about['seed']}-{about['steps']}"
        file = f"members/{name}.safetensors"
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file(flatten(jax.device_get(agent)), path)
        self.members.append(Member(name, architecture=architecture, file=file, checksum=checksum(path), **about))


def throw_away(spec: Spec, config: Mapping[str, Any], size: int) -> list[Kind]:
    """A pool of untrained networks that exists only in memory: for measuring speed."""
    mac = BasicMAC(spec, config)
    return [Kind(mac, jax.vmap(mac.init_agent)(jax.random.split(jax.random.key(0), size)), tuple(range(size)))]
