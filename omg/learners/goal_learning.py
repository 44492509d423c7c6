"""Goals from play: trajectories of other agents, the events in them, and goals in the latent space of a VAE of events.

An event is a time step at which an agent's reward is not zero.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from omg.envs import MultiAgentEnv, Spec
from omg.modules.goal_sets import describe_event
from omg.runners import HostRunner, PolicyGroup, play_members
from omg.utils.checkpoints import checksum
from omg.utils.settings import UserError

FILE = "trajectories.npz"


class Trajectories(NamedTuple):
    """Episodes from the view of all agents, `[episode, time, agent, …]`."""

    obs: np.ndarray
    """With the observation after the last step."""
    reward: np.ndarray
    playing: np.ndarray
    actions: np.ndarray
    avail_actions: np.ndarray


def play(
    env: MultiAgentEnv, groups: Sequence[PolicyGroup], episodes: int, seed: int, host: HostRunner | None = None
) -> Trajectories:
    """Episodes of every member, each in a team of its own copies; `host` plays environments in Python."""
    columns = []
    for group in groups:
        keys = jax.random.split(jax.random.key(seed), group.size)
        batch = play_members(env, group, episodes, keys, host)
        playing = batch["filled"][..., None] & batch["alive"]
        arrays = (batch.unpacked("obs"), batch["reward"], playing, batch["actions"], batch["avail_actions"])
        columns.append([np.asarray(x).reshape(-1, *x.shape[2:]) for x in arrays])
    obs, *steps = (np.concatenate(column) for column in zip(*columns, strict=True))
    return Trajectories(obs, *(x[:, :-1] for x in steps))


def read(path: Path, spec: Spec) -> Trajectories:
    """Trajectories that `omg collect` wrote."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there are no trajectories in {path}: make some with omg collect --env-config=…")
    if not file.with_suffix(".json").is_file():
        raise UserError(f"{file} has no checksum (an earlier version made it): make it again with omg collect.")
    try:
        stored = json.loads(file.with_suffix(".json").read_text())["checksum"]
        if stored != checksum(file):
            raise ValueError("its checksum differs")
        with np.load(file) as content:
            if "obs" in content and "actions" not in content:
                raise UserError(
                    f"{file} holds no actions (an earlier version made it): make it again with omg collect."
                )
            played = Trajectories(*(content[name] for name in Trajectories._fields))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise UserError(f"{file} is damaged: make it again with omg collect.") from error
    if played.obs.ndim != 4 or played.obs.shape[2:] != (spec.n_agents, spec.obs_size):
        raise UserError(f"{file} was made in another environment: its observations have shape {played.obs.shape[2:]}.")
    return played


def events(played: Trajectories, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Every event as the VAE's input, and its reward."""
    episode, time, agent = np.nonzero((played.reward != 0) & played.playing)
    reward, seen = played.reward[episode, time, agent], played.obs[episode, time, agent]
    rows = describe_event(jnp.asarray(seen), jnp.asarray(time / limit), jnp.asarray(reward))
    return np.asarray(rows, np.float32), np.asarray(reward)


def choose_goals(latents: Float[Array, "row latent"], n: int, key: Array) -> Float[Array, "goal latent"]:
    """The centres of k-means clusters of events."""
    centres = latents[jax.random.choice(key, len(latents), (n,), replace=False)]

    def improve(_: int, centres: Array) -> Array:
        nearest = ((latents[:, None] - centres) ** 2).sum(-1).argmin(-1)
        member = jax.nn.one_hot(nearest, n)
        count = member.sum(0)[:, None]
        return jnp.where(count > 0, member.T @ latents / jnp.maximum(count, 1), centres)

    return jax.lax.fori_loop(0, 50, improve, centres)


def explained(reward: np.ndarray, cluster: np.ndarray) -> float:
    """The fraction of the rewards' variance that lies between clusters."""
    total = reward.var()
    within = sum(reward[cluster == c].var() * (cluster == c).mean() for c in np.unique(cluster))
    return float(1 - within / total) if total > 0 else 1.0
