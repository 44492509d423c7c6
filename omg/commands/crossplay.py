"""`omg crossplay`: plays saved agents and scripted policies with each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import jax
import numpy as np

from omg.build import make_env
from omg.commands.common import Player, configure, load_player, result_folder, scripted_player, stamped
from omg.config import Command
from omg.envs import MultiAgentEnv
from omg.evaluation import report
from omg.evaluation.encounters import Encounter
from omg.training.settings import RunSettings
from omg.utils import checkpoints
from omg.utils.files import check_writable, make_folder, write_text
from omg.utils.logging import ProgressReport, say
from omg.utils.settings import UserError, fill

SUMMARY = """\
Plays every agent with every other: rows are the agent in one seat, columns the agent in all other seats. Arguments are
run folders and names of scripted policies; without a run folder --env-config names the environment. Numbers are team
returns. Writes crossplay.csv and a heat map."""
EXAMPLES = ["omg crossplay results/a results/b nearest_food rival --test_nepisode=100"]


def settings(command: Command) -> list[type]:
    return [RunSettings]


def main(command: Command) -> int:
    config = configure(command)
    words = command.words
    if len(words) < 2:
        raise UserError("crossplay needs two or more: omg crossplay results/A results/B nearest_food …")
    runs = {word: checkpoints.find_model(Path(word)) for word in words if Path(word).exists()}
    envs = {json.dumps([r.manifest["config"]["env"], r.manifest["config"]["env_args"]]) for r in runs.values()}
    if len(envs) > 1:
        raise UserError("these runs have different environments: " + " and ".join(sorted(envs)) + ".")
    name, env_args = json.loads(envs.pop()) if envs else (config["env"], config["env_args"])
    env = make_env({"env": name, "env_args": env_args})
    players = [player_of(word, runs, env) for word in words]
    for player in players:
        if player.mac.given_identity:
            raise UserError(
                f"{player.name} needs the identity of its pool's members: test it with omg evaluate --pool."
            )
        if not player.mac.can_be_opponent:
            raise UserError(f"{player.name} plans in the environment itself and cannot sit in all other seats.")
    episodes = fill(RunSettings, config).test_nepisode
    folder = check_writable(result_folder(config, stamped(config, "crossplay")))
    values = np.zeros((len(players), len(players)))
    with ProgressReport("crossplay", len(players) ** 2, unit="pairs") as progress:
        for i, agent in enumerate(players):
            for j, others in enumerate(players):
                encounter = Encounter(env, agent.mac, others.group(), episodes)
                found = [encounter.play(one, jax.random.key(17))[0].numbers["return"] for one in agent.params]
                values[i, j] = np.mean(found)
                progress.update(i * len(players) + j + 1)
    names = distinct([p.name for p in players])
    lines = [",".join(["agent", *names])] + [
        ",".join([n, *(f"{v:.6g}" for v in row)]) for n, row in zip(names, values, strict=True)
    ]
    write_text(make_folder(folder) / "crossplay.csv", "\n".join(lines) + "\n")
    report.heat_map(folder / "crossplay.png", names, values, f"return on {env.spec.name}")
    say("\n".join(lines))
    print(folder)
    return 0


def player_of(word: str, runs: Mapping[str, checkpoints.Checkpoint], env: MultiAgentEnv) -> Player:
    if word in runs:
        return load_player(runs[word], env)
    if "/" in word:
        raise UserError(f"there is no run in {word}.")
    return scripted_player(env, word, "run or scripted policy")


def distinct(names: list[str]) -> list[str]:
    return [n if names.count(n) == 1 else f"{n}-{names[: i + 1].count(n)}" for i, n in enumerate(names)]
