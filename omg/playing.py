"""Saved agents among others: `omg evaluate --pool=…` and `omg crossplay`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from omg import goal_learning
from omg.controllers import FocalMAC, HopMAC, RuleMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation import report
from omg.evaluation.replay import check_picture, save_focal_replay
from omg.evaluation.strangers import Meeting, Met
from omg.learners.subgoals import SubgoalSettings
from omg.modules.vae import VAE
from omg.opponents import REGISTRY as rule_REGISTRY
from omg.opponents.pool import Kind
from omg.opponents.seating import open_pool
from omg.parts import RunSettings, args_sanity_check
from omg.utils import checkpoints, vaes
from omg.utils.logging import ProgressReport, say
from omg.utils.settings import UserError, choose, fill

SPLITS = ("train", "homologue", "non_homologue")


class Player(NamedTuple):
    """A saved agent with every seed it was trained with, ready to sit in one seat or in all others."""

    name: str
    mac: Any
    seeds: list[Any]
    config: dict[str, Any]
    vae: VAE | None

    def kind(self) -> Kind:
        """As somebody's opponent: its first seed."""
        return Kind(self.mac, jax.tree.map(lambda x: jnp.asarray(x)[None], self.seeds[0]), (0,))


def load_player(found: checkpoints.Checkpoint, env: MultiAgentEnv, settings: Mapping[str, Any] | None = None) -> Player:
    """Any saved model whose policy acts from what one agent sees, with the settings it was saved with or others."""
    config = dict(settings or found.manifest["config"])
    if config["learner"] == "hop_learner":
        return _planner(found, env, config)
    mac = FocalMAC(env.spec, config if "am_model" in config else {**config, "am_model": "none_am"})
    n = len(found.manifest["seeds"])

    def shapes(key: jax.Array) -> dict[str, Any]:
        parts: dict[str, Any] = {"agent": mac.init_agent(key), **mac.am.init(key)}
        if mac.am.needs_vae:
            parts["vae"] = vaes.make(vaes.card_of(env.spec, config), key)
        if config["learner"] == "ppo_learner":
            parts["critic"] = mac.agent_class(mac.input_size, 1, env.spec.n_agents, mac.agent_settings, key)
        return parts

    like = jax.eval_shape(
        shapes if n == 1 else jax.vmap(shapes), jax.random.split(jax.random.key(0), n) if n > 1 else jax.random.key(0)
    )
    parts = {name: checkpoints.load_part(found, name, tree) for name, tree in like.items()}
    parts = jax.tree.map(jnp.asarray, parts)
    each = [parts] if n == 1 else [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(n)]
    vae = each[0].get("vae")
    seeds = [{name: tree for name, tree in one.items() if name != "vae"} for one in each]
    return Player(str(config["name"]), mac, seeds, config, vae)


def _planner(found: checkpoints.Checkpoint, env: MultiAgentEnv, config: dict[str, Any]) -> Player:
    space = goal_learning.find(env, config, found) if config.get("learned_goals") else None
    mac, n = HopMAC(env, config, space), len(found.manifest["seeds"])
    keys = jax.random.split(jax.random.key(0), n)
    like = jax.eval_shape(mac.init_networks, keys[0]) if n == 1 else jax.eval_shape(jax.vmap(mac.init_networks), keys)
    parts = {name: jax.tree.map(jnp.asarray, checkpoints.load_part(found, name, tree)) for name, tree in like.items()}
    seeds = [parts] if n == 1 else [jax.tree.map(lambda x, i=i: x[i], parts) for i in range(n)]
    return Player(str(config["name"]), mac, seeds, config, None)


def meet(env: MultiAgentEnv, player: Player, kinds: Sequence[Kind], episodes: int, title: str) -> list[list[Met]]:
    """For every seed of the player, how it did with every member."""
    subgoals = fill(SubgoalSettings, player.config)
    meetings = [Meeting(env, player.mac, kind, episodes, player.vae, subgoals) for kind in kinds]
    result: list[list[Met]] = []
    with ProgressReport(title, len(player.seeds) * len(meetings), unit="meetings") as progress:
        for i, agent in enumerate(player.seeds):
            met: list[Met] = []
            for j, meeting in enumerate(meetings):
                met += meeting.play(agent, jax.random.fold_in(jax.random.key(17), i))
                progress.update(i * len(meetings) + j + 1)
            result.append(sorted(met, key=lambda m: m.member))
    return result


def among_strangers(found: checkpoints.Checkpoint, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Every member of a pool with a saved agent; table, CSV and figures into the folder."""
    config, _ = args_sanity_check(config)
    env = make(config["env"], **(config["env_args"] or {}))
    pool = open_pool(config)
    player = load_player(found, env, config)
    ids = pool.ids(SPLITS)
    if not ids:
        raise UserError(f"the pool in {pool.folder} has no members yet.")
    kinds, episodes = pool.kinds(env.spec, ids), config["test_nepisode"]
    if config["save_replay"]:
        check_picture(env)
        subgoals, key = fill(SubgoalSettings, config), jax.random.key(config["seed"])
        save_focal_replay(env, player.mac, player.seeds[0], kinds[-1], key, folder / "replay.gif", player.vae, subgoals)
    seeds = meet(env, player, kinds, episodes, f"{player.name} with {len(ids)} others")
    estimates = report.write(folder, pool, seeds, f"{player.name} on {env.spec.name}")
    return {"t_env": found.t_env, "episodes_per_opponent": episodes, "opponents": report.plain_numbers(estimates)}


def crossplay(words: Sequence[str], config: Mapping[str, Any], folder: Path) -> Path:
    """Everyone with everyone: rows are the agent in one seat, columns play all others. Words are runs or rules."""
    if len(words) < 2:
        raise UserError("crossplay needs two or more: omg crossplay results/A results/B nearest_food …")
    runs = {word: checkpoints.find_model(Path(word)) for word in words if Path(word).exists()}
    worlds = {json.dumps([r.manifest["config"]["env"], r.manifest["config"]["env_args"]]) for r in runs.values()}
    if len(worlds) > 1:
        raise UserError("these runs are of different worlds: " + " and ".join(sorted(worlds)) + ".")
    name, env_args = json.loads(worlds.pop()) if worlds else (config["env"], config["env_args"])
    env = make(name, **(env_args or {}))
    players = [_player(word, runs, env) for word in words]
    for player in players:
        if isinstance(player.mac, HopMAC):
            raise UserError(f"{player.name} plans in the world itself and cannot play everybody else: leave it out.")
    episodes = fill(RunSettings, config).test_nepisode
    if episodes < 1:
        raise UserError(f"test_nepisode is {episodes}; it must be 1 or more.")
    values = np.zeros((len(players), len(players)))
    with ProgressReport("crossplay", len(players) ** 2, unit="pairs") as progress:
        for i, agent in enumerate(players):
            for j, others in enumerate(players):
                meeting = Meeting(env, agent.mac, others.kind(), episodes, None)
                met = [meeting.play(one, jax.random.key(17))[0].numbers["return"] for one in agent.seeds]
                values[i, j] = np.mean(met)
                progress.update(i * len(players) + j + 1)
    names = _distinct([p.name for p in players])
    folder.mkdir(parents=True, exist_ok=True)
    lines = [",".join(["agent", *names])] + [
        ",".join([n, *(f"{v:.6g}" for v in row)]) for n, row in zip(names, values, strict=True)
    ]
    (folder / "crossplay.csv").write_text("\n".join(lines) + "\n")
    report.heat_map(folder / "crossplay.png", names, values, f"return on {env.spec.name}")
    say("\n".join(lines))
    return folder


def _player(word: str, runs: Mapping[str, checkpoints.Checkpoint], env: MultiAgentEnv) -> Player:
    if word in runs:
        return load_player(runs[word], env)
    known = rule_REGISTRY.get(env.spec.name, {})
    if word not in known and "/" in word:
        raise UserError(f"there is no run in {word}.")
    rule = choose(known, word, f"run or rule of {env.spec.name}")(env.spec)
    return Player(word, RuleMAC(env.spec, rule), [jnp.int32(0)], {}, None)


def _distinct(names: list[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}-{names[: i + 1].count(n)}" for i, n in enumerate(names)]
