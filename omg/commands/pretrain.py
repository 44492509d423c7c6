"""`omg pretrain`: trains OMG's VAE of states, or HOP+'s goals, on play of a pool's training members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from omg.artifacts import build_goals, build_vae, card_of, home, open_pool
from omg.build import make_env
from omg.commands.common import configure, host_of, result_folder, stamped
from omg.config import Command
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import MultiAgentEnv
from omg.evaluation.figures import goal_figure, vae_figures
from omg.learners import AM_REGISTRY, goal_learning, intention_learning
from omg.learners.am_learner import VAESettings
from omg.modules.am.omg_am import Encoded, OMGSettings
from omg.modules.goal_sets import GoalSettings, GoalSpace
from omg.modules.intentions import IntentionSpace, entity_goals, tables_of
from omg.modules.slot_goals import learn_types
from omg.opponents import random_action
from omg.opponents.pool import PoolSettings
from omg.opponents.seating import SeatingSettings
from omg.runners import HostRunner, PolicyGroup, play_members
from omg.utils import checkpoints
from omg.utils.files import write_json
from omg.utils.logging import ProgressReport, say, show
from omg.utils.settings import UserError, choose, fill

SUMMARY = """\
Plays episodes of a pool's training members and learns from them: OMG's VAE of states (--config=iql_omg), or the goals
of HOP+ (--config=hop_plus). Training finds the newest one that fits; vae_path or goals_path names another."""
EXAMPLES = [
    "omg pretrain --config=iql_omg --env-config=foraging",
    "omg pretrain --config=hop_plus --env-config=stag_hunt --pool=rules",
]
EXTRA = (VAESettings, SeatingSettings, PoolSettings, OMGSettings)


def settings(command: Command) -> list[type]:
    return [VAESettings, GoalSettings, *EXTRA[1:]]


def main(command: Command) -> int:
    config = configure(command, EXTRA)
    print(pretrain_goals(config) if config.get("learned_goals") else pretrain_vae(config))
    return 0


def pretrain_vae(config: dict[str, Any]) -> Path:
    """Collects states, trains and saves the VAE; returns its folder."""
    env = make_env(config)
    pool = open_pool(config)
    card, s = card_of("vae", env.spec, config), fill(VAESettings, config)
    members = pool.ids(["train"])
    groups = pool.groups(env.spec, members)
    with host_of(env, config) as host:
        data = states_of(env, groups, s.vae_episodes, card["encoded"], host)
    say(f"{len(data):,} states of {card['size']} features from {len(members)} opponents")
    key = jax.random.key(config["seed"])
    held_out, data = data[: len(data) // 10], data[len(data) // 10 :]
    vae, curve = train(build_vae(card, key), data, s, key, f"VAE of {config['env_config']}")
    unseen = jnp.asarray(held_out)
    decoded = vae.decode(vae.encode(unseen).mu)
    error = ((vae.standard(decoded) - vae.standard(unseen)) ** 2).mean()
    summary = {
        "states": len(data),
        "recons_loss": curve[-1]["recons_loss"],
        "kl_loss": curve[-1]["kl_loss"],
        "held_out_unexplained": float(error / (vae.standard(unseen) ** 2).mean()),
    }
    folder = save("vae", vae, card, config, s, curve, summary)
    vae_figures(folder, curve, np.asarray(unseen[:24]), np.asarray(decoded[:24]))
    return folder


def pretrain_goals(config: dict[str, Any]) -> Path:
    """Collects trajectories (or reads them) and learns goals of the form `goal_form`."""
    env = make_env(config)
    g, s = fill(GoalSettings, config), fill(VAESettings, config)
    card = card_of("goals", env.spec, config)
    if s.trajectories:
        played = goal_learning.read(Path(s.trajectories), env.spec)
    else:
        pool = open_pool(config)
        groups = pool.groups(env.spec, pool.ids(["train"]))
        with host_of(env, config) as host:
            played = goal_learning.play(env, groups, s.vae_episodes, int(config["seed"]), host)
    # Goals are learned from what HOP's networks see.
    played = played._replace(obs=np.asarray(env.own_first(jnp.asarray(played.obs))))
    if g.goal_form == "slots":
        types, found = learn_types(env.spec, *played[:3])
        return save("goals", types, card, config, s, [], found)
    if g.goal_form == "intentions":
        return pretrain_intentions(env, played, card, config)
    rows, reward = goal_learning.events(played, env.spec.episode_limit)
    if len(rows) < g.n_goal_clusters:
        raise UserError(
            f"there are {len(rows)} events with a reward in {len(played.obs)} episodes, too few for "
            f"{g.n_goal_clusters} goals: collect more (--vae_episodes), or from members that earn rewards."
        )
    key = jax.random.key(config["seed"])
    empty = build_goals(card, key)
    assert isinstance(empty, GoalSpace)
    vae, curve = train(empty.vae, rows, s, key, f"goals of {config['env_config']}")
    latents = vae.encode(jnp.asarray(rows)).mu
    goals = goal_learning.choose_goals(latents, g.n_goal_clusters, jax.random.fold_in(key, 2))
    space = GoalSpace(vae, goals)
    nearest = np.asarray(space.distances(latents).argmin(-1))
    summary = {
        "events": len(rows),
        "recons_loss": curve[-1]["recons_loss"],
        "reward_explained": goal_learning.explained(reward, nearest),
        "largest_cluster": float(np.bincount(nearest).max() / len(nearest)),
    }
    folder = save("goals", space, card, config, s, curve, summary)
    title = f"goals of {config['env_config']}"
    goal_figure(folder / "goals.png", np.asarray(latents), reward, np.asarray(goals), title)
    return folder


def pretrain_intentions(
    env: MultiAgentEnv, played: goal_learning.Trajectories, card: Any, config: dict[str, Any]
) -> Path:
    """Learns intentions, and to compare a model of the same actions without goals."""
    g, s = fill(GoalSettings, config), fill(VAESettings, config)
    key, goals, curve = jax.random.key(config["seed"]), entity_goals(env), list[dict[str, float]]()
    play, held_out = intention_learning.split(played)
    models = {"intentions": (g.n_intentions, g.goal_hazard), "without": (1, 1.0)}
    spaces = list[IntentionSpace]()
    for name, (codes, hazard) in models.items():
        with ProgressReport(f"{config['env_config']}, {name}", s.vae_updates, unit="updates") as progress:

            def report(done: int, metrics: dict[str, float], progress=progress, name=name) -> None:
                curve.append({"updates": done, "model": name, **metrics})
                progress.update(done)

            start = IntentionSpace(codes, goals.size, goals.n_types, env.spec.n_actions, key)
            spaces.append(intention_learning.learn(start, goals, play, hazard, s, key, report))
    types = np.asarray(tables_of(env.spec))
    summary = intention_learning.measured(spaces[0], spaces[1], goals, types, held_out, g.goal_hazard)
    return save("goals", spaces[0], card, config, s, curve, summary)


def train(start: Any, rows: np.ndarray, s: VAESettings, key: jax.Array, title: str) -> tuple[Any, list[dict]]:
    curve: list[dict[str, float]] = []
    with ProgressReport(title, s.vae_updates, unit="updates") as progress:

        def report(done: int, metrics: dict[str, float]) -> None:
            curve.append({"updates": done, **metrics})
            progress.update(done)

        learner = choose(AM_REGISTRY, s.am_learner, "am_learner")(s)
        vae = learner.train(start, jnp.asarray(rows), jax.random.fold_in(key, 1), report)
    return vae, curve


def save(
    name: str, network: Any, card: Any, config: dict[str, Any], s: VAESettings, curve: list[dict], summary: dict
) -> Path:
    at = stamped({"local_results_path": str(home(name, config))}, str(config["env_config"]))
    folder = result_folder(config, at)
    checkpoints.save(folder / "checkpoints", s.vae_updates, {name: jax.device_get(network)}, {name: card}, 1)
    write_json(folder / "curve.json", curve)
    write_json(folder / "summary.json", summary)
    show(summary)
    return folder


def states_of(
    env: MultiAgentEnv, groups: Sequence[PolicyGroup], episodes: int, encoded: Encoded, host: HostRunner | None = None
) -> np.ndarray:
    """What is encoded of some episodes of each member (in a team of its own copies) and of random play, shuffled."""
    rows = []
    random = PolicyGroup(ScriptedMAC(env.spec, random_action), jnp.zeros(1, jnp.int32), (-1,))
    for group in (*groups, random):
        keys = jax.random.split(jax.random.key(group.size), group.size)
        batch = play_members(env, group, episodes, keys, host)
        values = np.asarray(batch.unpacked("obs" if encoded == "obs" else "state"))
        if encoded == "agents":
            values = values[..., np.array(env.spec.agents_in_state)]
        # The state after the last step counts as well; observations of dead agents do not.
        real = np.asarray(batch["filled"])
        real = real | np.concatenate([np.zeros_like(real[..., :1]), real[..., :-1]], -1)
        if encoded != "state":
            real = real[..., None] & np.asarray(batch["alive"])
        rows.append(values[real].reshape(-1, values.shape[-1]))
    return np.random.default_rng(0).permutation(np.concatenate(rows)).astype(np.float32)
