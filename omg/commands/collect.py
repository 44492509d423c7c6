"""`omg collect`: records trajectories of a pool's training members."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from omg.artifacts import open_pool
from omg.build import make_env
from omg.commands.common import configure, host_of, result_folder
from omg.config import Command, env_label
from omg.learners import goal_learning
from omg.learners.am_learner import VAESettings
from omg.opponents.pool import PoolSettings
from omg.opponents.seating import SeatingSettings
from omg.utils.checkpoints import checksum
from omg.utils.files import check_writable, make_folder, write_json
from omg.utils.logging import say
from omg.utils.settings import fill

SUMMARY = """\
Plays vae_episodes episodes of every training member of a pool and writes trajectories.npz, from which
`omg pretrain --config=hop_plus --trajectories=DIR` learns goals."""
EXAMPLES = ["omg collect --env-config=stag_hunt --pool=rules --vae_episodes=256"]
EXTRA = (VAESettings, SeatingSettings, PoolSettings)


def settings(command: Command) -> list[type]:
    return list(EXTRA)


def main(command: Command) -> int:
    config = configure(command, EXTRA, learns=False)
    env = make_env(config)
    folder = result_folder(config, Path(str(config["local_results_path"])) / "trajectories" / env_label(config))
    check_writable(folder)
    pool = open_pool(config)
    groups = pool.groups(env.spec, pool.ids(["train"]))
    with host_of(env, config) as host:
        played = goal_learning.play(env, groups, fill(VAESettings, config).vae_episodes, int(config["seed"]), host)
    path = make_folder(folder) / goal_learning.FILE
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **played._asdict())
        file.flush()
        os.fsync(file.fileno())
    write_json(path.with_suffix(".json"), {"checksum": checksum(temporary)})
    temporary.replace(path)
    say(f"{len(played.obs):,} episodes of {config['env_config']}")
    print(folder)
    return 0
