"""Pools: populations of frozen opponents on disk (`pool.json` and one file per member), and as stacked networks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file

from omg.controllers.basic_controller import BasicMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs.multiagentenv import Spec
from omg.opponents.scripted import REGISTRY as scripted_REGISTRY
from omg.runners.team_runner import PolicyGroup
from omg.utils.checkpoints import checksum, digest_of, flatten, halved, unflatten, write_arrays
from omg.utils.files import inside, write_json
from omg.utils.settings import UserError, choose, fill_exactly, setting

MANIFEST = "pool.json"
Split = Literal["train", "homologue", "non_homologue"]
SPLIT_NAMES: tuple[Split, ...] = ("train", "homologue", "non_homologue")
ARCHITECTURE = (
    "policy_model",
    "rnn_hidden_dim",
    "rnn_cell",
    "layer_norm",
    "agent_output_type",
    "action_selector",
    "test_greedy",
    "epsilon_finish",
    "obs_last_action",
    "obs_agent_id",
    "obs_relative",
)
"""The settings that a frozen policy needs to act."""
CONVOLUTIONS = ("conv_channels", "conv_stride")
"""Those that it needs besides, if it sees frames."""


@dataclass(frozen=True)
class Member:
    """One opponent: a network at one stage of its training, or a scripted policy."""

    name: str
    algorithm: str
    split: Split
    seed: int | None = None
    steps: int | None = None
    return_mean: float | None = None
    architecture: dict = field(default_factory=dict)
    file: str | None = None
    checksum: str | None = None

    @property
    def is_scripted(self) -> bool:
        return self.file is None


@dataclass(frozen=True)
class PoolSettings:
    """What `omg pool` trains: algorithms × seeds × stages, and which scripted policies it adds."""

    pool_algs: list | None = setting(
        ["iql", "vdn"], "algorithms of training members; their held-out seeds are homologue"
    )
    pool_test_algs: list | None = setting(["qmix", "iql_idv"], "algorithms of unseen members only (non-homologue)")
    pool_train_seeds: int = setting(1, "number of training seeds of each of pool_algs", low=0)
    pool_test_seeds: int = setting(2, "number of held-out seeds of each algorithm", low=0)
    pool_stages: list | None = setting([0.2, 0.5, 1.0], "when a network is stored, as fractions of its training")
    pool_rules: list | None = setting(None, "scripted policies of the train split; null: the environment's own")
    pool_test_rules: list | None = setting(None, "scripted policies held out; null: the environment's own split")


class Pool:
    """A pool's manifest. Networks are read on demand and checked against their checksums."""

    def __init__(
        self,
        folder: Path,
        env: str,
        env_args: dict[str, Any],
        members: Sequence[Member] = (),
        recipe: dict[str, Any] | None = None,
    ):
        self.folder = folder
        self.env = env
        self.env_args = env_args
        self.members = list(members)
        self.recipe = recipe or {}

    @classmethod
    def load(cls, folder: Path) -> Pool:
        path = folder / MANIFEST
        try:
            content = json.loads(path.read_text())
            stored = content.pop("checksum", None)
            # Pools of earlier versions have no checksum.
            if stored is not None and stored != digest_of(content):
                raise ValueError("its checksum differs")
            members = [fill_exactly(Member, entry, "members.") for entry in content["members"]]
            pool = cls(folder, content["env"], dict(content["env_args"]), members, dict(content["recipe"]))
        except FileNotFoundError as error:
            raise UserError(f"there is no pool in {folder}: make one with omg pool --env-config=…") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is damaged: make the pool again with omg pool.") from error
        met = {m.checksum for m in members if m.checksum and m.split == "train"}
        if seen := [m.name for m in members if m.checksum in met and m.split != "train"]:
            raise UserError(f"the pool in {folder} is damaged: {seen[0]} is unseen and a training member, too.")
        return pool

    def save(self) -> None:
        names = [member.name for member in self.members]
        assert len(set(names)) == len(names), "every member belongs to one split"
        content: dict[str, Any] = {"env": self.env, "env_args": self.env_args, "recipe": self.recipe}
        content["members"] = [asdict(m) for m in self.members]
        write_json(self.folder / MANIFEST, content | {"checksum": digest_of(content)})

    def check_env(self, env: str, env_args: Mapping[str, Any]) -> None:
        """A pool belongs to one environment with one set of settings."""
        if self.env != env:
            raise UserError(
                f"the pool in {self.folder} was made for {self.env}, this run is on {env}: choose another --pool."
            )
        differ = [key for key in {*self.env_args, *env_args} if self.env_args.get(key) != env_args.get(key)]
        if differ:
            key = sorted(differ)[0]
            raise UserError(
                f"the pool in {self.folder} was made with env_args.{key}={self.env_args.get(key)}, this run has "
                f"{env_args.get(key)}: make one for it with omg pool, or choose another --pool."
            )

    def ids(self, splits: Sequence[str], algorithm: str = "any") -> list[int]:
        """Places of the members of these splits, of one algorithm, of all (`any`) or all scripted ones (`rules`)."""
        found = []
        for i, member in enumerate(self.members):
            named = algorithm == "any" or member.algorithm == algorithm or (algorithm == "rules" and member.is_scripted)
            if member.split in splits and named:
                found.append(i)
        return found

    def groups(self, spec: Spec, ids: Sequence[int]) -> list[PolicyGroup]:
        """These members in as few stacks as their architectures allow."""
        by_architecture: dict[str, list[int]] = {}
        for i in ids:
            member = self.members[i]
            key = "scripted" if member.is_scripted else json.dumps(member.architecture, sort_keys=True)
            by_architecture.setdefault(key, []).append(i)
        return [
            self._scripted(spec, g) if key == "scripted" else self._networks(spec, g)
            for key, g in by_architecture.items()
        ]

    def _scripted(self, spec: Spec, ids: list[int]) -> PolicyGroup:
        known = choose(scripted_REGISTRY, spec.name, "environment with scripted policies")
        policies = [choose(known, self.members[i].algorithm, "scripted policy")(spec) for i in ids]
        return PolicyGroup(ScriptedMAC(spec, *policies), jnp.arange(len(policies)), tuple(ids))

    def _networks(self, spec: Spec, ids: list[int]) -> PolicyGroup:
        mac = BasicMAC(spec, self.members[ids[0]].architecture)
        like = jax.eval_shape(mac.init_params, jax.random.key(0))
        members = [
            {name: unflatten(self._read(self.members[i], name), like[name], self.members[i].name) for name in like}
            for i in ids
        ]
        return PolicyGroup(mac, jax.tree.map(lambda *x: jnp.asarray(np.stack(x)), *members), tuple(ids))

    def _read(self, member: Member, network: str) -> dict[str, np.ndarray]:
        """One network of a member; the members of a pool have only a policy ("agent")."""
        path = inside(self.folder, member.file, "pool member")
        if not path.is_file():
            raise UserError(f"the pool in {self.folder} has no file {member.file}: make it again with omg pool.")
        if checksum(path) != member.checksum:
            raise UserError(f"the pool in {self.folder} is damaged: {member.file} was truncated or altered.")
        return load_file(path)

    def add_network(self, network: Any, config: Mapping[str, Any], **about: Any) -> None:
        """Writes one trained network, in half precision, and enters it in the manifest."""
        frames = CONVOLUTIONS if config["policy_model"] == "conv_rnn" else ()
        architecture = {key: config[key] for key in (*ARCHITECTURE, *frames)}
        name = f"{about['algorithm']}-{about['seed']}-{about['steps']}"
        file = f"members/{name}.safetensors"
        path = self.folder / file
        path.parent.mkdir(parents=True, exist_ok=True)
        write_arrays(halved(flatten(jax.device_get(network)), name), path)
        self.members.append(Member(name, architecture=architecture, file=file, checksum=checksum(path), **about))

    def take(self, member: Member, home: Path, split: Split) -> None:
        """Copies a member of the pool in `home` into this one."""
        assert member.file is not None
        path = self.folder / member.file
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(home / member.file, path)
        self.members.append(replace(member, split=split))


def untrained(spec: Spec, config: Mapping[str, Any], size: int) -> list[PolicyGroup]:
    """A pool of untrained networks that exists in memory only, for speed measurements."""
    mac = BasicMAC(spec, config)
    policies = jax.vmap(mac.init_params)(jax.random.split(jax.random.key(0), size))
    return [PolicyGroup(mac, policies, tuple(range(size)))]
