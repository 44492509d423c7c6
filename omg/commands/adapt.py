"""`omg adapt`: plays a saved agent with the same co-players for several episodes; nothing is trained."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from rich.table import Table

from omg.artifacts import SCRIPTED, open_pool
from omg.build import make_env
from omg.commands.common import load_player, model_folder, saved_model
from omg.components.layers import few_launches
from omg.config import Command
from omg.controllers import HopMAC
from omg.envs import MultiAgentEnv
from omg.evaluation.adaptation import POINTS, Adaptation, Adapted, AdaptSettings
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.evaluation.recording import check_render, record_focal
from omg.evaluation.replay import save_replay
from omg.evaluation.statistics import Estimate, estimate
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents.co_players import TIT_FOR_TAT, CoPlayers, mixtures, only_some, scripted_co_players
from omg.opponents.grid_policies import REPLIES
from omg.opponents.pool import SPLIT_NAMES, PoolSettings
from omg.opponents.scripted import usual
from omg.opponents.seating import SeatingSettings
from omg.training.settings import RunSettings
from omg.utils import checkpoints
from omg.utils.files import check_writable, make_folder, write_json, write_text
from omg.utils.logging import ProgressReport, console
from omg.utils.settings import UserError, fill

SUMMARY = """\
Seats a saved agent with copies of one co-player in all other seats, for adapt_episodes episodes in a row, and reports
the agent's return by episode, the goal types it reached, and for agents with beliefs how accurate they are. Without
--pool: every scripted policy of the environment (stochastic_0 and the like only if co_players names them). With
--pool=rules: those of pool_rules and pool_test_rules, by default the run's own. With --pool=DIR: the unseen members of
that pool. co_players chooses by name, also training members;
always_stag+always_hare+random seats three scripted policies one, two and three places after the agent;
always_stag:always_hare plays the first half of the episodes in one way, and the second half in another."""
EXAMPLES = [
    "omg adapt --checkpoint_path=results/hop --test_nepisode=100",
    "omg adapt --checkpoint_path=results/hop --pool=rules --co_players=[always_stag,always_hare]",
    "omg adapt --checkpoint_path=results/hop --co_players=[always_stag+always_hare+always_hare] --same_boards",
    "omg adapt --checkpoint_path=results/hop --oracle_goals --save_replay",
]


def settings(command: Command) -> list[type]:
    return [AdaptSettings, RunSettings, SeatingSettings, PoolSettings]


def main(command: Command) -> int:
    extra = (AdaptSettings, PoolSettings) if command.get("pool") == SCRIPTED else (AdaptSettings,)
    found, config, pool = saved_model(command, extra)
    name = "oracle_goals" if config["oracle_goals"] else "adaptation"
    folder = check_writable(model_folder(config, found, name))
    write_json(folder / "summary.json", adapt(found, config | {"pool": pool}, folder))
    print(folder)
    return 0


def adapt(found: checkpoints.Checkpoint, config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Every type of co-player in turn; table, CSV and figure into the folder."""
    s = fill(AdaptSettings, config)
    env = make_env(config)
    if env.spec.n_agents < 2:
        raise UserError(f"{env.spec.name} has one agent here: there are no co-players.")
    if config.get("save_replay"):
        check_render(env)
    player = load_player(found, env, config)
    if player.mac.given_identity:
        raise UserError(f"{player.name} needs the identity of its pool's members: test it with omg evaluate --pool.")
    everyone = choose_co_players(env, config, s.co_players)
    if s.oracle_goals:
        if not isinstance(player.mac, HopMAC) or player.mac.space is not None:
            raise UserError(
                f"--oracle_goals is for agents with beliefs over the environment's goals (hop), not {player.name}."
            )
        apart = [others.only(i) for others in everyone for i in range(len(others.names))]
        # One oracle serves all seats.
        everyone = [others for others in apart if others.goals and len({*others.goals[0], *others.later[0]}) == 1]
        everyone = [others for others in everyone if others.goals[0][0] is not None]
        if not everyone:
            raise UserError(
                f"--oracle_goals needs the same scripted policy with a goal in all other seats: those of "
                f"{', '.join(REPLIES)} and repeated matrix games have some."
            )
    elif not few_launches():
        # On the CPU one after the other: short episodes do not wait for long ones.
        everyone = [others.only(i) for others in everyone for i in range(len(others.names))]
    results: dict[str, list[Adapted]] = {}
    encounters, seeds = int(config["test_nepisode"]), len(player.params)
    agents = jax.tree.map(lambda *x: jnp.stack(x), *player.params)
    keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(int(config["seed"])), jnp.arange(seeds))
    programs: dict[Any, Adaptation] = {}
    teams = [team for others in everyone for team in (*others.goals, *others.later)]
    known = [*dict.fromkeys(goal for team in teams for goal in team if goal is not None)]
    with ProgressReport(f"{player.name} adapts", len(everyone), unit="types of co-players") as progress:
        for i, others in enumerate(everyone):
            mac = HopMAC(env, config, oracle=others.goals[0][0]) if s.oracle_goals else player.mac
            # Scripted policies share a program, unless the agent has the oracle of one of them.
            of = (id(others.group.mac), others.names if s.oracle_goals else len(others.names), others.changes)
            if of not in programs:
                programs[of] = Adaptation(
                    env, mac, others.group.mac, encounters, s.adapt_episodes, others.friendly, len(others.names),
                    seeds, s.same_boards, known, others.changes,
                )  # fmt: skip
            played = programs[of].play(agents, others.group.policies, keys, others.numbers_of(known))
            results |= dict(zip(others.names, played, strict=True))
            progress.update(i + 1)
            progress.line()
    make_folder(folder)
    summary = {name: summarise(env, adapted) for name, adapted in results.items()}
    write(folder / "adaptation.csv", results, found.manifest["seeds"])
    draw(folder / "adaptation.png", results, f"{player.name} on {config['env_config']}")
    show(f"{player.name} on {config['env_config']}", summary)
    write_text(folder / "config.yaml", yaml.safe_dump(dict(config), sort_keys=False))
    if config.get("save_replay"):
        last, key = everyone[-1].only(len(everyone[-1].names) - 1).group, jax.random.key(int(config["seed"]))
        names = f"{player.name} (focal agent)", everyone[-1].names[-1]
        episode = record_focal(env, player.mac, player.params[0], last, key, player.vae, names)
        save_replay(episode, folder / "replay.gif")
    return {name: {m: e._asdict() for m, e in numbers.items()} for name, numbers in summary.items()}


def choose_co_players(env: MultiAgentEnv, config: Mapping[str, Any], wanted: Sequence[str] | None) -> list[CoPlayers]:
    """The co-players named in `wanted`; by default all scripted policies, or the unseen members of a pool."""
    scripted = scripted_REGISTRY.get(env.spec.name, {})
    reciprocal = [TIT_FOR_TAT] if env.spec.name in REPLIES else []
    if not config.get("pool"):
        if not scripted:
            raise UserError(f"{env.spec.name} has no scripted policies: add --pool=DIR (omg pool makes one).")
        asked = {part for name in wanted or () for part in str(name).replace(":", "+").split("+")}
        names = [*(name for name in scripted if usual(name) or name in asked), *reciprocal]
        return only_some([scripted_co_players(env, [*names, *mixtures(env, names, wanted)])], wanted)
    pool = open_pool(config)
    unseen = SPLIT_NAMES if config["pool"] == SCRIPTED or wanted is not None else SPLIT_NAMES[1:]
    ids = pool.ids(unseen)
    if not ids:
        raise UserError(f"the pool in {pool.folder} has no unseen members.")
    names = [pool.members[i].algorithm for i in ids if pool.members[i].is_scripted]
    # Tit-for-tat differs from other policies only over several episodes, so pools do not list it.
    names = [*names, *reciprocal] if names else []
    found = [scripted_co_players(env, [*names, *mixtures(env, names, wanted)])] if names else []
    for group in pool.groups(env.spec, [i for i in ids if not pool.members[i].is_scripted]):
        found.append(CoPlayers(tuple(pool.members[i].name for i in group.ids), group))
    return only_some(found, wanted)


def summarise(env: MultiAgentEnv, seeds: Sequence[Adapted]) -> dict[str, Estimate]:
    """Intervals over the encounters of all seeds together: they describe these agents, not other training seeds."""
    late = -max(1, len(seeds[0].focal_return) // 4)

    def over(values: Sequence[np.ndarray]) -> Estimate:
        rows = np.concatenate([np.asarray(v, float).reshape(-1) for v in values])
        # An encounter in which no co-player reached a goal has no value and does not count.
        rows = rows[np.isfinite(rows)]
        return estimate(rows) if len(rows) else Estimate(*(float("nan"),) * 4, 0)

    numbers = {
        "return, first": over([s.focal_return[0] for s in seeds]),
        "return, last quarter": over([s.focal_return[late:].mean(0) for s in seeds]),
        "gain of the second episode": over(
            [s.focal_return[min(1, len(s.focal_return) - 1)] - s.focal_return[0] for s in seeds]
        ),
        # With same_boards every encounter is compared with itself.
        "gain of the last quarter": over([s.focal_return[late:].mean(0) - s.focal_return[0] for s in seeds]),
        "team return, last quarter": over([s.team_return[late:].mean(0) for s in seeds]),
    }
    # Strategies of a repeated game are too many for a table.
    for goal_type in sorted(set(env.goal_types)) if env.exclusive_goals else ():
        numbers[f"reached goal type {goal_type}"] = over([(s.goal_type == goal_type).mean(0) for s in seeds])
    if seeds[0].action_accuracy is not None:
        half = POINTS // 2
        numbers["action accuracy"] = over([s.action_accuracy.mean(0) for s in seeds])  # type: ignore[union-attr]
        for name in ("goal_belief", "type_belief"):
            title = name.replace("_", " ")
            each = [getattr(s, name) for s in seeds]
            numbers[f"{title}, halfway, first episode"] = over([x[0, :, half] for x in each])
            numbers[f"{title}, at the start"] = over([_mean(x[..., 0], 0) for x in each])
            numbers[f"{title}, halfway"] = over([_mean(x[..., half], 0) for x in each])
            numbers[f"{title}, at the end"] = over([_mean(x[..., -1], 0) for x in each])
        if seeds[0].true_belief is not None:
            for name, title in (("true_belief", "true goal"), ("true_type_belief", "true goal type")):
                each = [getattr(s, name) for s in seeds]
                numbers[f"belief in the {title}, halfway, first episode"] = over([x[0, :, half] for x in each])
                numbers[f"belief in the {title}, halfway"] = over([_mean(x[..., half], 0) for x in each])
        numbers["steps until belief > ½"] = over([_mean(s.steps_to_half, 0) for s in seeds])
        numbers["fraction of steps inferred"] = over([s.inferred.mean(0) for s in seeds])  # type: ignore[union-attr]
    return numbers


def _mean(x: Any, axis: Any) -> np.ndarray:
    """The mean over finite values; NaN where there are none."""
    real = np.isfinite(x)
    return np.where(real, x, 0.0).sum(axis) / np.where(real.any(axis), real.sum(axis), np.nan)


def show(title: str, summary: Mapping[str, Mapping[str, Estimate]]) -> None:
    """One table for every two types of co-players, so that it fits 80 columns."""
    names = list(summary)
    for start in range(0, len(names), 2):
        table = Table(title=f"{title}: mean [95 % interval]")
        table.add_column("")
        for name in names[start : start + 2]:
            table.add_column(name)
        for measure in summary[names[0]]:
            table.add_row(measure, *(str(summary[name][measure]) for name in names[start : start + 2]))
        console.print(table)


def write(path: Path, results: Mapping[str, Sequence[Adapted]], numbers: Sequence[int]) -> None:
    """One row for every episode of every seed: means over encounters, and beliefs in the true goal."""
    points = [f"goal_belief_{k / (POINTS - 1):.1f}" for k in range(POINTS)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["co_players", "seed", "episode", "return", "team_return", "action_accuracy", "steps", *points])
        for name, seeds in results.items():
            for seed, s in zip(numbers, seeds, strict=True):
                for e in range(len(s.focal_return)):
                    row = [s.focal_return[e].mean(), s.team_return[e].mean()]
                    if s.action_accuracy is not None:
                        row += [s.action_accuracy[e].mean(), _mean(s.steps_to_half[e], 0), *_mean(s.goal_belief[e], 0)]  # type: ignore[index]
                    writer.writerow([name, seed, e + 1, *(f"{x:.4f}" for x in row)])


def draw(path: Path, results: Mapping[str, Sequence[Adapted]], title: str) -> None:
    """The return by episode and, for agents with beliefs, the belief along an episode."""
    believes = next(iter(results.values()))[0].goal_belief is not None
    figure, panels = pyplot().subplots(
        1, 2 if believes else 1, figsize=(10 if believes else 6, 4), layout="constrained"
    )
    panels = np.atleast_1d(panels)
    for i, (name, seeds) in enumerate(results.items()):
        colour = COLOURS[i % len(COLOURS)]
        returns = np.concatenate([s.focal_return for s in seeds], 1)
        band(panels[0], range(1, len(returns) + 1), returns.T, colour, name, marker="o", markersize=3)
        if believes:
            belief = np.concatenate([_mean(s.goal_belief, 0) for s in seeds])
            band(panels[1], np.linspace(0, 1, POINTS), belief, colour, name)
    plain(panels[0], "episode with the same co-players", "focal return", title)
    if believes:
        plain(panels[1], "fraction of a co-player's steps", "belief in the goal that was reached", title)
    panels[-1].legend(frameon=False, fontsize=8)
    save(figure, path)


def band(
    panel: Any, places: Sequence[float] | np.ndarray, rows: np.ndarray, colour: str, name: str, **look: Any
) -> None:
    """The mean of the rows with its 95 % interval."""
    mean = _mean(rows, 0)
    margin = 1.96 * np.sqrt(_mean((rows - mean) ** 2, 0) / np.maximum(np.isfinite(rows).sum(0), 1))
    panel.plot(places, mean, color=colour, label=name, **look)
    panel.fill_between(places, mean - margin, mean + margin, color=colour, alpha=0.15, linewidth=0)
