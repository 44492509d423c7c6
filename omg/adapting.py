"""`omg adapt`: a saved agent meets co-players of one kind after the other, again and again, and nothing is trained."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import yaml
from rich.table import Table

from omg.controllers import HopMAC, MoodMAC
from omg.envs import MultiAgentEnv, make
from omg.evaluation.adaptation import MOMENTS, Adaptation, Adapted, AdaptSettings
from omg.evaluation.figures import COLOURS, plain, pyplot, save
from omg.evaluation.replay import check_picture, save_focal_replay
from omg.evaluation.statistics import Estimate, estimate
from omg.learners.subgoals import SubgoalSettings
from omg.opponents import REGISTRY as rule_REGISTRY
from omg.opponents.hunting import REPLIES
from omg.opponents.pool import Kind
from omg.opponents.seating import open_pool
from omg.playing import load_player
from omg.utils import checkpoints, device
from omg.utils.logging import ProgressReport, console
from omg.utils.settings import UserError, fill

TIT_FOR_TAT = "tit_for_tat"


class CoPlayers(NamedTuple):
    """Kinds of co-players that one controller plays: any of them in all other seats."""

    names: tuple[str, ...]
    kind: Kind
    friendly: int = -1
    """The kind of goal that tit-for-tat takes for friendly (-1: nobody asks)."""
    aims: tuple[Any, ...] = ()
    """What each written rule is after, from what it sees: for an agent that is told. None: nobody can say."""

    def only(self, *places: int) -> CoPlayers:
        def at(x: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(x[i] for i in places) if x else ()

        policies = jax.tree.map(lambda x: x[jnp.array(places)], self.kind.policies)
        kind = self.kind._replace(policies=policies, ids=at(self.kind.ids))
        return self._replace(names=at(self.names), kind=kind, aims=at(self.aims))


def adapt(found: checkpoints.Checkpoint, config: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Every kind of co-player in turn; table, CSV and figure into the folder."""
    settings = fill(AdaptSettings, config)
    env = make(config["env"], **(config["env_args"] or {}))
    if env.spec.n_agents < 2:
        raise UserError(f"{env.spec.name} has one agent here: there is nobody to meet.")
    if config.get("save_replay"):
        check_picture(env)
    if int(config["test_nepisode"]) < 1:
        raise UserError(f"test_nepisode is {config['test_nepisode']}; it must be 1 or more.")
    player = load_player(found, env, config)
    everybody = only_some(co_players(env, config), settings.co_players)
    if settings.told:
        if not isinstance(player.mac, HopMAC) or player.mac.space is not None:
            raise UserError(f"--told is for agents with beliefs about the world's own goals (hop), not {player.name}.")
        apart = [others.only(i) for others in everybody for i in range(len(others.names))]
        everybody = [others for others in apart if others.aims and others.aims[0] is not None]
        if not everybody:
            raise UserError(f"nobody here says what it is after: --told needs written rules of {' or '.join(REPLIES)}.")
    elif not device.few_launches():
        # One after the other: a kind whose episodes are short need not wait for the rest.
        everybody = [others.only(i) for others in everybody for i in range(len(others.names))]
    results: dict[str, list[Adapted]] = {}
    meetings, seeds = int(config["test_nepisode"]), len(player.seeds)
    agents = jax.tree.map(lambda *x: jnp.stack(x), *player.seeds)
    lots = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(int(config["seed"])), jnp.arange(seeds))
    programs: dict[Any, Adaptation] = {}
    with ProgressReport(f"{player.name} adapts", len(everybody), unit="kinds of co-players") as progress:
        for i, others in enumerate(everybody):
            mac = HopMAC(env, config, told=others.aims[0]) if settings.told else player.mac
            # Written rules share a program, unless the agent is told of each what it is after.
            of = (id(others.kind.mac), others.names if settings.told else len(others.names))
            if of not in programs:
                programs[of] = Adaptation(
                    env, mac, others.kind.mac, meetings, settings.adapt_episodes, others.friendly, len(others.names),
                    seeds, settings.same_boards,
                )  # fmt: skip
            found_out = programs[of].play(agents, others.kind.policies, lots)
            results |= dict(zip(others.names, found_out, strict=True))
            progress.update(i + 1)
            progress.line()
    folder.mkdir(parents=True, exist_ok=True)
    summary = {name: summarise(env, adapted) for name, adapted in results.items()}
    show(player.name, env, summary)
    write(folder / "adaptation.csv", results)
    draw(folder / "adaptation.png", results, f"{player.name} on {env.spec.name}")
    (folder / "config.yaml").write_text(yaml.safe_dump(dict(config), sort_keys=False))
    if config.get("save_replay"):
        last, key = everybody[-1].only(len(everybody[-1].names) - 1).kind, jax.random.key(int(config["seed"]))
        subgoals = fill(SubgoalSettings, config)
        save_focal_replay(env, player.mac, player.seeds[0], last, key, folder / "replay.gif", player.vae, subgoals)
    return {name: {m: e._asdict() for m, e in numbers.items()} for name, numbers in summary.items()}


def co_players(env: MultiAgentEnv, config: Mapping[str, Any]) -> list[CoPlayers]:
    """A pool's unseen members, or without a pool every written rule of the world."""
    world = env.spec.name
    rules = rule_REGISTRY.get(world, {})
    if not config.get("pool"):
        if not rules:
            raise UserError(f"{world} has no written rules to meet: add --pool=DIR (omg pool makes one).")
        return _rules(env, [*rules, *([TIT_FOR_TAT] if world in REPLIES else [])])
    pool = open_pool(config)
    ids = pool.ids(["homologue", "non_homologue"])
    if not ids:
        raise UserError(f"the pool in {pool.folder} has nobody unseen to meet.")
    names = [pool.members[i].algorithm for i in ids if pool.members[i].is_rule]
    # It differs from other rules only where one meets again.
    found = _rules(env, [*names, *([TIT_FOR_TAT] if world in REPLIES else [])]) if names else []
    for kind in pool.kinds(env.spec, [i for i in ids if not pool.members[i].is_rule]):
        found.append(CoPlayers(tuple(pool.members[i].name for i in kind.ids), kind))
    return found


def only_some(everybody: list[CoPlayers], wanted: Sequence[str] | None) -> list[CoPlayers]:
    if wanted is None:
        return everybody
    there = [name for others in everybody for name in others.names]
    if unknown := [name for name in wanted if name not in there]:
        raise UserError(f"nobody here is called {', '.join(map(str, unknown))}: co_players are of {', '.join(there)}.")
    places = [[i for i, name in enumerate(others.names) if name in wanted] for others in everybody]
    return [others.only(*chosen) for others, chosen in zip(everybody, places, strict=True) if chosen]


def _rules(env: MultiAgentEnv, names: Sequence[str]) -> list[CoPlayers]:
    """Written rules, all played by one controller."""
    rules = rule_REGISTRY[env.spec.name]
    replies = REPLIES.get(env.spec.name, ())
    made = {name: rules[name](env.spec) for name in (*names, *replies) if name != TIT_FOR_TAT}
    place = {name: i for i, name in enumerate(made)}
    pairs = [[place[r] for r in (replies if name == TIT_FOR_TAT else (name, name))] for name in names]
    kind = Kind(MoodMAC(env.spec, *made.values()), jnp.array(pairs, jnp.int32), tuple(range(len(names))))
    aims = tuple(getattr(made.get(name), "aim", None) for name in names)
    # Friendly is a stag, or any drift at all.
    return [CoPlayers(tuple(names), kind, max(env.goal_kinds) if replies else -1, aims)]


def summarise(env: MultiAgentEnv, seeds: Sequence[Adapted]) -> dict[str, Estimate]:
    """Intervals over the meetings of all seeds together: how these agents fare, not what other seeds would learn."""
    late = -max(1, len(seeds[0].focal_return) // 4)

    def over(values: Sequence[np.ndarray]) -> Estimate:
        rows = np.concatenate([np.asarray(v, float).reshape(-1) for v in values])
        # What is not a number (a meeting in which nobody reached anything) counts for nobody.
        rows = rows[np.isfinite(rows)]
        return estimate(rows) if len(rows) else Estimate(*(float("nan"),) * 4, 0)

    numbers = {
        "return, first": over([s.focal_return[0] for s in seeds]),
        "return, last quarter": over([s.focal_return[late:].mean(0) for s in seeds]),
        "gain of the second meeting": over(
            [s.focal_return[min(1, len(s.focal_return) - 1)] - s.focal_return[0] for s in seeds]
        ),
        "team return, last quarter": over([s.team_return[late:].mean(0) for s in seeds]),
    }
    for kind in sorted(set(env.goal_kinds)):
        numbers[f"reached kind {kind}"] = over([(s.kind == kind).mean(0) for s in seeds])
    if seeds[0].action_accuracy is not None:
        half = MOMENTS // 2
        numbers["action accuracy"] = over([s.action_accuracy.mean(0) for s in seeds])  # type: ignore[union-attr]
        for name in ("goal_belief", "kind_belief"):
            title = name.replace("_", " ")
            each = [getattr(s, name) for s in seeds]
            numbers[f"{title}, by half, first episode"] = over([x[0, :, half] for x in each])
            numbers[f"{title}, at first"] = over([_mean(x[..., 0], 0) for x in each])
            numbers[f"{title}, by half"] = over([_mean(x[..., half], 0) for x in each])
            numbers[f"{title}, at last"] = over([_mean(x[..., -1], 0) for x in each])
        numbers["steps until belief > ½"] = over([_mean(s.steps_to_half, 0) for s in seeds])
        numbers["steps inferred from"] = over([s.inferred.mean(0) for s in seeds])  # type: ignore[union-attr]
    return numbers


def _mean(x: Any, axis: Any) -> np.ndarray:
    """Over what is a number; not a number where nothing is."""
    real = np.isfinite(x)
    return np.where(real, x, 0.0).sum(axis) / np.where(real.any(axis), real.sum(axis), np.nan)


def show(name: str, env: MultiAgentEnv, summary: Mapping[str, Mapping[str, Estimate]]) -> None:
    table = Table(title=f"{name} on {env.spec.name}, by co-players")
    table.add_column("mean [95 % interval]")
    for others in summary:
        table.add_column(others)
    for measure in next(iter(summary.values())):
        table.add_row(measure, *(str(numbers[measure]) for numbers in summary.values()))
    console.print(table)


def write(path: Path, results: Mapping[str, Sequence[Adapted]]) -> None:
    """One row for every episode of every seed: means over meetings, and beliefs in the true goal along the episode."""
    moments = [f"goal_belief_{k / (MOMENTS - 1):.1f}" for k in range(MOMENTS)]
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ["co_players", "seed", "episode", "return", "team_return", "action_accuracy", "steps", *moments]
        )
        for name, seeds in results.items():
            for seed, s in enumerate(seeds):
                for e in range(len(s.focal_return)):
                    row = [s.focal_return[e].mean(), s.team_return[e].mean()]
                    if s.action_accuracy is not None:
                        row += [s.action_accuracy[e].mean(), _mean(s.steps_to_half[e], 0), *_mean(s.goal_belief[e], 0)]  # type: ignore[index]
                    writer.writerow([name, seed, e + 1, *(f"{x:.4f}" for x in row)])


def draw(path: Path, results: Mapping[str, Sequence[Adapted]], title: str) -> None:
    """The return by episode and, where there are beliefs, how they grow along an episode."""
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
            band(panels[1], np.linspace(0, 1, MOMENTS), belief, colour, name)
    plain(panels[0], "episode with the same co-players", "its own return", title)
    if believes:
        plain(panels[1], "part of a co-player's time", "belief in the goal that was reached", title)
    panels[-1].legend(frameon=False, fontsize=8)
    save(figure, path)


def band(
    panel: Any, places: Sequence[float] | np.ndarray, rows: np.ndarray, colour: str, name: str, **look: Any
) -> None:
    """The mean of the rows, and where it lies with 95 % confidence."""
    mean = _mean(rows, 0)
    margin = 1.96 * np.sqrt(_mean((rows - mean) ** 2, 0) / np.maximum(np.isfinite(rows).sum(0), 1))
    panel.plot(places, mean, color=colour, label=name, **look)
    panel.fill_between(places, mean - margin, mean + margin, color=colour, alpha=0.15, linewidth=0)
