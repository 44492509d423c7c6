"""A run's folder as a pool: the team that it trained sits in the other seats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from omg.controllers import REGISTRY as mac_REGISTRY
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.opponents.pool import Member, Pool
from omg.utils import checkpoints
from omg.utils.settings import UserError, choose, names_of


def is_run(folder: Path) -> bool:
    return (folder / "checkpoints").is_dir() or (folder / checkpoints.MANIFEST).is_file()


class RunPool(Pool):
    """Every seed's networks are one member, used for training and tests alike. A member may have an agent model."""

    def __init__(self, folder: Path):
        self.found = checkpoints.find_model(folder)
        config: dict[str, Any] = self.found.manifest["config"]
        mac = choose(mac_REGISTRY, config["mac"], "mac")
        if not mac.can_be_opponent:
            raise UserError(
                f"{folder} holds {config['name']}, which plans in the environment itself: only agents that do not plan "
                "can be opponents, such as iql, ppo or ppo_liam."
            )
        read = [key for cls in mac.settings_classes(config) for key in names_of(cls)]
        architecture = {key: config[key] for key in read if key in config}
        if choose(am_REGISTRY, config.get("am_model", "none_am"), "am_model").given_identity:
            raise UserError(f"{folder} holds an oracle, which must be given the identity of its partners.")
        self.seeds = self.found.manifest["seeds"]
        members = [
            Member(f"{config['name']}-{seed}", config["name"], "train", seed, self.found.t_env, None, architecture, "")
            for seed in self.seeds
        ]
        super().__init__(folder, config["env"], config["env_args"] or {}, members)

    def ids(self, splits: Sequence[str], algorithm: str = "any") -> list[int]:
        return [i for i, member in enumerate(self.members) if algorithm in ("any", member.algorithm)]

    def _read(self, member: Member, network: str) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = load_file(self.found.file(f"{network}.safetensors"))
        i = self.members.index(member)
        return {name: x[i] for name, x in arrays.items()} if len(self.seeds) > 1 else arrays
