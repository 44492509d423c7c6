"""A run's folder as a pool: the team that it trained sits in the other seats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from omg.controllers import REGISTRY as mac_REGISTRY
from omg.opponents.pool import ARCHITECTURE, Member, Pool
from omg.utils import checkpoints
from omg.utils.settings import UserError, choose

FILE = "agent.safetensors"


def is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir() or (folder / checkpoints.MANIFEST).is_file()


class RunPool(Pool):
    """Every seed's networks are one member, used for training and tests alike."""

    def __init__(self, folder: Path):
        found = checkpoints.find_model(folder)
        config: dict[str, Any] = found.manifest["config"]
        models_others = config.get("am_model", "none_am") != "none_am"
        if models_others or not choose(mac_REGISTRY, config["mac"], "mac").can_be_opponent:
            raise UserError(
                f"{folder} holds {config['name']}: only agents that neither plan nor have an agent model can be "
                "opponents, such as iql, vdn, qmix or ppo."
            )
        seeds = found.manifest["seeds"]
        self.arrays: dict[str, np.ndarray] = load_file(found.file(FILE))
        self.several = len(seeds) > 1
        architecture = {key: config[key] for key in ARCHITECTURE}
        members = [
            Member(f"{config['name']}-{seed}", config["name"], "train", seed, found.t_env, None, architecture, FILE)
            for seed in seeds
        ]
        super().__init__(folder, config["env"], config["env_args"] or {}, members)

    def ids(self, splits: Sequence[str], algorithm: str = "any") -> list[int]:
        return [i for i, member in enumerate(self.members) if algorithm in ("any", member.algorithm)]

    def _read(self, member: Member) -> dict[str, np.ndarray]:
        i = self.members.index(member)
        return {name: x[i] for name, x in self.arrays.items()} if self.several else self.arrays
