"""Goals from play: `omg collect` lets others play, `omg pretrain --config=hop_plus` makes a space of goals of it.

A stretch of play ends where an agent's reward is not zero; what was so at that moment is what it was after.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from omg.components.episode_buffer import make_scheme
from omg.config import env_words
from omg.envs import MultiAgentEnv, make
from omg.evaluation.figures import goal_picture
from omg.learners.am_learner import AMLearner, VAESettings
from omg.modules.goal_sets import GoalSettings, GoalSpace, describe, size_of
from omg.modules.vae import VAE
from omg.opponents.seating import open_pool
from omg.runners import VectorRunner
from omg.utils import checkpoints, device
from omg.utils.logging import ProgressReport, say, show
from omg.utils.settings import UserError, fill

Card = dict[str, Any]
FILE = "trajectories.npz"


class Trajectories(NamedTuple):
    """Episodes as everybody saw them, `[episode, time, agent, …]`."""

    obs: np.ndarray
    reward: np.ndarray
    playing: np.ndarray


def collect(config: Mapping[str, Any]) -> Path:
    """Lets the training members of a pool play among themselves and keeps what happened."""
    device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    env = make(config["env"], **(config["env_args"] or {}))
    folder = Path(str(config["run_dir"] or f"{config['local_results_path']}/trajectories/{env.spec.name}"))
    played = play(env, config)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / FILE, **played._asdict())
    say(f"{len(played.obs):,} episodes of {env.spec.name}")
    return folder


def play(env: MultiAgentEnv, config: Mapping[str, Any]) -> Trajectories:
    pool, episodes = open_pool(config), fill(VAESettings, config).vae_episodes
    parts = []
    for kind in pool.kinds(env.spec, pool.ids(["train"])):
        runner = VectorRunner(env, kind.mac, *make_scheme(env.spec), episodes, n_seeds=kind.size)
        now = jnp.zeros(kind.size, jnp.int32)
        keys = jax.random.split(jax.random.key(int(config["seed"])), kind.size)
        batch, _ = jax.jit(lambda p, k, r=runner, now=now: r.run(p, now, k, True))(kind.policies, keys)
        assert batch is not None
        playing = batch["filled"][..., None] & batch.alive
        arrays = (batch.unpacked("obs"), batch.reward, playing)
        parts.append([np.asarray(x).reshape(-1, *x.shape[2:])[:, :-1] for x in arrays])
    return Trajectories(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def moments(played: Trajectories, form: str, window: int, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """Every moment in which reward came, as f_ψ sees it, and that reward."""
    episode, time, agent = np.nonzero((played.reward != 0) & played.playing)
    before = np.pad(played.obs, ((0, 0), (window - 1, 0), (0, 0), (0, 0)))
    seen = np.stack([before[episode, time + k, agent] for k in range(window)], 1)
    reward = played.reward[episode, time, agent]
    rows = describe(form, jnp.asarray(seen), jnp.asarray(time / limit), jnp.asarray(reward))
    return np.asarray(rows, np.float32), np.asarray(reward)


def pretrain(config: Mapping[str, Any]) -> Path:
    """Collects (or reads what `collect` kept), trains f_ψ, chooses goals in its space, saves; returns the folder."""
    for notice in device.setup(config.get("use_cuda"), bool(config.get("compilation_cache"))):
        say(notice, "yellow")
    env = make(config["env"], **(config["env_args"] or {}))
    settings, training = fill(GoalSettings, config), fill(VAESettings, config)
    played = read(Path(str(config["trajectories"])), env) if config.get("trajectories") else play(env, config)
    card = card_of(env, config)
    rows, reward = moments(played, settings.goal_form, card["window"], env.spec.episode_limit)
    if len(rows) < settings.n_goal_clusters:
        raise UserError(
            f"reward came {len(rows)} times in {len(played.obs)} episodes, too seldom for {settings.n_goal_clusters} "
            "goals: collect more (--vae_episodes), from others who earn something."
        )
    key = jax.random.key(config["seed"])
    curve: list[dict[str, float]] = []
    with ProgressReport(f"goals of {env.spec.name}", training.vae_updates, unit="updates") as progress:

        def report(done: int, metrics: dict[str, float]) -> None:
            curve.append({"updates": done, **metrics})
            progress.update(done)

        start = VAE(card["size"], int(config["vae_hidden_dim"]), settings.goal_latent_dim, key)
        vae = AMLearner(training).train(start, jnp.asarray(rows), jax.random.fold_in(key, 1), report)
    latents = vae.encode(jnp.asarray(rows)).mu
    goals = choose_goals(latents, settings.n_goal_clusters, settings.goal_choice, jax.random.fold_in(key, 2))
    space = GoalSpace(vae, goals, settings.goal_form)
    nearest = np.asarray(space.distances(latents).argmin(-1))
    summary = {
        "moments": len(rows),
        "recons_loss": curve[-1]["recons_loss"],
        # How much of the difference between rewards is a difference between goals.
        "reward_explained": _explained(reward, nearest),
        "largest_cluster": float(np.bincount(nearest).max() / len(nearest)),
    }
    stamped = home(config) / f"{env.spec.name}__{settings.goal_form}__{datetime.now():%Y%m%d-%H%M%S-%f}"
    folder = Path(str(config["run_dir"])) if config.get("run_dir") else stamped
    checkpoints.save(folder / "checkpoints", training.vae_updates, {"goals": jax.device_get(space)}, {"goals": card}, 1)
    (folder / "curve.json").write_text(json.dumps(curve, indent=1))
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    goal_picture(folder / "goals.png", np.asarray(latents), reward, np.asarray(goals), f"goals of {env.spec.name}")
    show(summary)
    return folder


def choose_goals(latents: Float[Array, "row latent"], n: int, choice: str, key: Array) -> Float[Array, "goal latent"]:
    """Moments as they were, or the centres of clusters of them (k-means from such a start)."""
    centres = latents[jax.random.choice(key, len(latents), (n,), replace=False)]
    if choice == "continuous":
        return centres

    def closer(_: int, centres: Array) -> Array:
        nearest = ((latents[:, None] - centres) ** 2).sum(-1).argmin(-1)
        member = jax.nn.one_hot(nearest, n)
        count = member.sum(0)[:, None]
        return jnp.where(count > 0, member.T @ latents / jnp.maximum(count, 1), centres)

    return jax.lax.fori_loop(0, 50, closer, centres)


def _explained(reward: np.ndarray, cluster: np.ndarray) -> float:
    total = reward.var()
    within = sum(reward[cluster == c].var() * (cluster == c).mean() for c in np.unique(cluster))
    return float(1 - within / total) if total > 0 else 1.0


def read(path: Path, env: MultiAgentEnv) -> Trajectories:
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"there are no trajectories in {path}: make some with omg collect --env-config=…")
    try:
        with np.load(file) as content:
            played = Trajectories(*(content[name] for name in Trajectories._fields))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{file} is damaged: make it again with omg collect.") from error
    if played.obs.shape[2:] != (env.spec.n_agents, env.spec.obs_size):
        raise UserError(
            f"{file} is of another world: {played.obs.shape[2]} agents that see {played.obs.shape[3]} numbers."
        )
    return played


# --- on disk


def card_of(env: MultiAgentEnv, config: Mapping[str, Any]) -> Card:
    """What a space of goals must be for, to be of use to this configuration."""
    s = fill(GoalSettings, config)
    window = s.goal_window if s.goal_form == "trajectory" else 1
    return {
        "world": env.spec.name,
        "env_args": dict(config.get("env_args") or {}),
        "form": s.goal_form,
        "window": window,
        "size": size_of(s.goal_form, env.spec.obs_size, window),
        "latent": s.goal_latent_dim,
        "hidden": int(config["vae_hidden_dim"]),
        "goals": s.n_goal_clusters,
        "choice": s.goal_choice,
    }


def shape(card: Card) -> GoalSpace:
    def empty(key: Array) -> GoalSpace:
        vae = VAE(card["size"], card["hidden"], card["latent"], key)
        return GoalSpace(vae, jnp.zeros((card["goals"], card["latent"])), card["form"])

    return jax.eval_shape(empty, jax.random.key(0))


def home(config: Mapping[str, Any]) -> Path:
    return Path(str(config["local_results_path"])) / "goals"


def find(env: MultiAgentEnv, config: Mapping[str, Any], saved: checkpoints.Checkpoint | None = None) -> GoalSpace:
    """The space that a saved model was trained with, the one at `goals_path`, or the newest that fits."""
    wanted = card_of(env, config)
    if saved is not None and "goals.safetensors" in saved.manifest["files"]:
        return of_model(saved, wanted)
    if config.get("goals_path"):
        found: checkpoints.Checkpoint | None = checkpoints.find(Path(str(config["goals_path"])))
        card = found.manifest.get("goals") if found else None
        if not isinstance(card, dict):
            raise UserError(f"{config['goals_path']} holds no goals: omg pretrain --config=hop_plus makes them.")
        differ = [key for key in wanted if card.get(key) != wanted[key]]
        if differ:
            key = differ[0]
            raise UserError(f"the goals in {config['goals_path']} have {key} {card.get(key)}, this run {wanted[key]}.")
    else:
        folders = sorted(home(config).glob("*/checkpoints"), key=lambda p: p.stat().st_mtime, reverse=True)
        whole = (checkpoints.newest_whole(folder)[0] for folder in folders)
        found = next((c for c in whole if c is not None and c.manifest.get("goals") == wanted), None)
    if found is None:
        raise UserError(
            f"{config['name']} needs goals learned from play, and {home(config)} has none that fit. Make them: "
            f"omg pretrain --config=hop_plus --pool={config.get('pool') or 'rules'} {env_words(config)}"
        )
    return checkpoints.load_part(found, "goals", shape(wanted))


def of_model(saved: checkpoints.Checkpoint, card: Card) -> GoalSpace:
    """The space inside a model's checkpoint; every seed has the same one."""
    seeds, like = len(saved.manifest["seeds"]), shape(card)
    if seeds > 1:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), like)
    space = checkpoints.load_part(saved, "goals", like)
    return space if seeds == 1 else jax.tree.map(lambda x: x[0], space)
