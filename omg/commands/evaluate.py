"""`omg evaluate`: tests a saved model, in the setting it was trained in or with every member of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from omg.artifacts import open_pool
from omg.build import args_sanity_check, build, make_env
from omg.commands.common import (
    Player,
    configure,
    host_of,
    load_player,
    model_folder,
    names_in_replay,
    result_folder,
    saved_model,
    scripted_player,
    stamped,
)  # fmt: skip
from omg.config import Command
from omg.envs import MultiAgentEnv
from omg.evaluation import report
from omg.evaluation.encounters import Encounter, Result
from omg.evaluation.metrics import over_seeds, summarise
from omg.evaluation.recording import check_render, record_each, record_focal, record_team
from omg.evaluation.replay import save_replay
from omg.opponents.pool import SPLIT_NAMES, PoolSettings
from omg.opponents.seating import SeatingSettings
from omg.runners import PolicyGroup
from omg.runners.host_runner import HostRunner
from omg.training.restore import check_seeds, load_acting
from omg.training.settings import RunSettings
from omg.utils import checkpoints
from omg.utils.files import check_name, check_writable, make_folder, write_json
from omg.utils.logging import ProgressReport, compiling, show
from omg.utils.settings import UserError

SUMMARY = """\
Tests a saved model. Without --pool: as in training. With --pool: test_nepisode episodes with every member of a pool,
training members and unseen ones apart, with intervals over seeds; writes partners.json, opponents.csv and figures.
The name of a scripted policy in place of a model tests that policy in the agent's seat, as a bound to compare with."""
EXAMPLES = [
    "omg evaluate --checkpoint_path=results/mine --test_nepisode=100 --save_replay",
    "omg evaluate --checkpoint_path=results/mine --pool=results/pools/foraging",
    "omg evaluate --checkpoint_path=results/mine --pool=rules",
    "omg evaluate nearest_food --env-config=foraging --pool=results/pools/foraging",
]


def settings(command: Command) -> list[type]:
    return [RunSettings, SeatingSettings, PoolSettings]


def main(command: Command) -> int:
    if command.words:
        return scripted(command)
    extra = (PoolSettings,) if command.get("pool") else ()
    found, config, pool = saved_model(command, extra)
    folder = check_writable(model_folder(config, found, "evaluation"))
    if pool:
        player = load_player(found, make_env(config), config)
        summary = {"t_env": found.t_env} | with_pool(player, found.manifest["seeds"], config, pool, folder)
    else:
        summary = as_trained(found, config, folder)
    write_json(folder / "summary.json", summary)
    print(folder)
    return 0


def scripted(command: Command) -> int:
    """A scripted policy in the seat of the trained agent, with every member of a pool."""
    name, *more = command.words
    if "/" in name or Path(name).exists() or command.get("checkpoint_path"):
        raise UserError(f"a saved model is named by --checkpoint_path: omg evaluate --checkpoint_path={name}")
    if more:
        raise UserError("evaluate takes one scripted policy at a time: omg evaluate nearest_food --pool=…")
    config = configure(command, (PoolSettings,), learns=False)
    folder = check_writable(result_folder(config, stamped(config, f"evaluate_{name}")))
    player = scripted_player(make_env(config), name)
    summary = with_pool(player, [config["seed"]], config, command.get("pool"), folder)
    write_json(folder / "summary.json", summary)
    print(folder)
    return 0


def as_trained(found: checkpoints.Checkpoint, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The test of the training run, with as many episodes as asked for."""
    config, _ = args_sanity_check(config)
    experiment = build(config, saved=found)
    run = experiment.settings
    if run.save_replay:
        check_render(experiment.env)
    check_seeds(found, run.seeds)
    acting = load_acting(experiment.loop, found)
    with compiling(f"test of {run.name} on {run.env_config}"):
        stats = experiment.loop.evaluate(acting, 0, run.test_nepisode)
    each = summarise(experiment.spec, stats, run.n_seeds)
    summary = {"t_env": found.t_env, "seed": run.seed, "test_nepisode": run.test_nepisode, **over_seeds(each)}
    make_folder(folder)
    if run.save_replay and experiment.learner.focal:
        env, params = experiment.env, acting if run.seeds == 1 else jax.tree.map(lambda x: x[0], acting)
        player = load_player(found, env, config)
        group = experiment.loop.runner.opponents[0].groups[-1]
        names = names_in_replay(player.name, open_pool(experiment.config), group)
        key = jax.random.key(run.seed)
        episode = record_focal(env, player.mac, player.params[0], group, key, player.vae, names)
        save_replay(episode, folder / "replay.gif")
    elif run.save_replay:
        params = acting if run.seeds == 1 else jax.tree.map(lambda x: x[0], acting)
        episode = record_team(experiment.env, experiment.mac, params, jax.random.key(run.seed), run.name)
        save_replay(episode, folder / "replay.gif")
    show(summary)
    return summary


def with_pool(
    player: Player, seeds: Sequence[int], config: dict[str, Any], pool_path: Any, folder: Path
) -> dict[str, Any]:
    """Every member of a pool with an agent; table, CSV and figures into the folder. `seeds` are those of the agent."""
    env = make_env(config)
    pool = open_pool(config | {"pool": pool_path})
    if player.mac.given_identity and len(pool.members) != player.mac.prior_size:
        raise UserError(f"{player.name} knows the members of the pool it was trained with, not those of {pool.folder}.")
    ids = pool.ids(SPLIT_NAMES)
    if not ids:
        raise UserError(f"the pool in {pool.folder} has no members yet.")
    groups, episodes = pool.groups(env.spec, ids), int(config["test_nepisode"])
    make_folder(folder)
    embeddings: dict[str, np.ndarray] = {}
    if config["save_replay"]:
        check_render(env)
        key = jax.random.key(config["seed"])
        name = f"{player.name} (focal agent)"
        for group in groups:
            members = [pool.members[i].name for i in group.ids]
            recorded = record_each(env, player.mac, player.params[0], group, key, player.vae, name, members)
            for member, episode in zip(members, recorded, strict=True):
                episode.save(folder / "episodes" / check_name(member, "member"))
                if episode.embedding is not None:
                    embeddings[member] = episode.embedding
        save_replay(recorded[-1], folder / "replay.gif")
    with host_of(env, config) as host:
        results, played = play_all(env, player, groups, episodes, f"{player.name} with {len(ids)} partners", host)
    estimates = report.write(folder, pool, results, seeds, f"{player.name} on {config['env_config']}", embeddings)
    return {"episodes_per_opponent": played, "opponents": report.plain_numbers(estimates)}


def play_all(
    env: MultiAgentEnv,
    player: Player,
    groups: Sequence[PolicyGroup],
    episodes: int,
    title: str,
    host: HostRunner | None = None,
) -> tuple[list[list[Result]], int]:
    """For every seed of the player, the results with every member; and the episodes played with each."""
    encounters = [Encounter(env, player.mac, group, episodes, player.vae, host) for group in groups]
    results: list[list[Result]] = []
    total = len(player.params) * sum(encounter.played for encounter in encounters)
    with ProgressReport(title, total, unit="episodes") as progress:
        for i, params in enumerate(player.params):
            found: list[Result] = []
            for encounter in encounters:
                key = jax.random.fold_in(jax.random.key(17), i)
                found += encounter.play(params, key, lambda played: progress.update(progress.done + played))
            results.append(sorted(found, key=lambda r: r.member))
    return results, encounters[0].episodes
