"""`omg probe`: what an agent knows about its partners, and whether it uses what its agent model infers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.table import Table

from omg.artifacts import open_pool
from omg.build import make_env
from omg.commands.common import Player, load_player, model_folder, saved_model
from omg.config import Command
from omg.controllers.basic_controller import BasicMAC
from omg.envs import MultiAgentEnv
from omg.evaluation import figures
from omg.evaluation.encounters import Encounter
from omg.evaluation.probing import Probed, Reading, read_all, shuffled
from omg.evaluation.statistics import Estimate, estimate
from omg.opponents.pool import PoolSettings
from omg.opponents.seating import SPLITS_OF, SeatingSettings, merged
from omg.runners import PolicyGroup
from omg.training.settings import RunSettings
from omg.utils.files import check_writable, make_folder, write_json
from omg.utils.logging import ProgressReport, console, say
from omg.utils.settings import UserError

SUMMARY = """\
Plays a saved agent with the unseen members of a pool and fits linear probes to what it sees (its input, its last
inputs), to its policy's memory and to its agent model's embedding: how often can one read from them who the partner is,
what the others do next, and which goal they reach next (in environments that define goals)? Then plays the same boards
with embeddings of other episodes: what the return loses shows how much the policy relies on them. Writes probe.json
and probe.png."""
EXAMPLES = [
    "omg probe --checkpoint_path=results/mine --pool=rules",
    "omg probe --checkpoint_path=zoo:prisoners_dilemma/liam --pool=zoo:prisoners_dilemma --test_nepisode=40",
]


def settings(command: Command) -> list[type]:
    return [RunSettings, SeatingSettings, PoolSettings]


def main(command: Command) -> int:
    found, config, pool_path = saved_model(command, (PoolSettings,))
    if not pool_path:
        raise UserError("probe needs partners: add --pool=DIR, --pool=zoo:TASK or --pool=rules.")
    env = make_env(config)
    player = load_player(found, env, config)
    if not isinstance(player.mac, BasicMAC) or player.mac.given_identity:
        raise UserError(f"probe reads recurrent policies with or without an agent model, not {player.name}.")
    pool = open_pool(config | {"pool": pool_path})
    ids = pool.ids(SPLITS_OF["unseen"])
    if len(ids) < 2:
        raise UserError(f"probe needs two unseen partners or more; the pool in {pool.folder} has {len(ids)}.")
    if int(config["test_nepisode"]) < 2 * env.spec.n_agents:
        raise UserError(f"probe needs two episodes in every seat: --test_nepisode={2 * env.spec.n_agents} or more.")
    folder = check_writable(model_folder(config, found, "probe"))
    group = merged(env.spec, pool.groups(env.spec, ids))
    readings, returns = probe(env, player, group, int(config["test_nepisode"]))
    make_folder(folder)
    title = f"{player.name} on {config['env_config']}, {len(ids)} unseen partners"
    estimates = {target: over_seeds(readings, target) for target in readings[0]}
    show(title, estimates, returns)
    draw(folder / "probe.png", title, estimates)
    numbers = {target: {source: e._asdict() for source, e in row.items()} for target, row in estimates.items()}
    write_json(folder / "probe.json", {"readable": numbers, "return": {k: v._asdict() for k, v in returns.items()}})
    print(folder)
    return 0


def probe(
    env: MultiAgentEnv, player: Player, group: PolicyGroup, episodes: int
) -> tuple[list[dict[str, dict[str, Reading]]], dict[str, Estimate]]:
    """Every seed's readings, and the focal return with its own embeddings and with those of other episodes."""
    probed = Probed(env, player.mac, group, episodes)
    plays = {"own": Encounter(env, player.mac, group, episodes)}
    if player.mac.am.output_size:
        plays["shuffled"] = Encounter(env, shuffled(player.mac), group, episodes)
    readings: list[dict[str, dict[str, Reading]]] = []
    returns: dict[str, list[list[float]]] = {name: [] for name in plays}
    with ProgressReport(f"probes of {player.name}", len(player.params), unit="seeds") as progress:
        for i, agent in enumerate(player.params):
            key = jax.random.fold_in(jax.random.key(17), i)
            readings.append(read_all(probed.samples(agent, key)))
            for name, encounter in plays.items():
                each = encounter.play(agent, key)
                returns[name].append([r.numbers["focal_return"] for r in each])
            progress.update(i + 1)
    estimates = {name: estimate(np.asarray(values)) for name, values in returns.items()}
    if "shuffled" in returns:
        estimates["lost"] = estimate(np.asarray(returns["own"]) - np.asarray(returns["shuffled"]))
    return readings, estimates


def over_seeds(readings: Sequence[Mapping[str, Mapping[str, Reading]]], target: str) -> dict[str, Estimate]:
    """The accuracy from each source, and that of the most frequent class."""
    sources = readings[0][target]
    found = {name: estimate(np.array([seed[target][name].accuracy for seed in readings])) for name in sources}
    first = next(iter(sources))
    return {"most frequent": estimate(np.array([seed[target][first].most_frequent for seed in readings])), **found}


def show(title: str, estimates: Mapping[str, Mapping[str, Estimate]], returns: Mapping[str, Estimate]) -> None:
    table = Table(title=f"{title}: accuracy of linear probes")
    table.add_column("read from")
    for target in estimates:
        table.add_column(target)
    for source in next(iter(estimates.values())):
        table.add_row(source, *(str(row[source]) for row in estimates.values()))
    console.print(table)
    if "lost" in returns:
        say(
            f"focal return {returns['own']}; with embeddings of other episodes {returns['shuffled']}: "
            f"it loses {returns['lost']}."
        )
    else:
        say(f"focal return {returns['own']}; there is no agent model whose embedding could be shuffled.")


def draw(path: Path, title: str, estimates: Mapping[str, Mapping[str, Estimate]]) -> None:
    sources = list(next(iter(estimates.values())))
    figure, axes = figures.pyplot().subplots(figsize=(1.5 + 2.2 * len(estimates), 3.6), layout="constrained")
    width = 0.8 / len(sources)
    for i, source in enumerate(sources):
        shown: list[Any] = [row[source] for row in estimates.values()]
        colour = figures.COLOURS[5] if i == 0 else figures.COLOURS[i - 1]
        places = np.arange(len(shown)) + i * width
        errors = [[e.mean - e.low for e in shown], [e.high - e.mean for e in shown]]
        axes.bar(places, [e.mean for e in shown], width, yerr=errors, capsize=2, label=source, color=colour)
    axes.set_xticks(np.arange(len(estimates)) + 0.4 - width / 2, list(estimates))
    figures.plain(axes, "", "accuracy", title)
    axes.legend(fontsize=7, frameon=False)
    figures.save(figure, path)
