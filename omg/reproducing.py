"""`omg reproduce WORLD`: the paper's comparison from an empty folder, stage by stage.

Every stage leaves a mark when it is done, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from omg import config as configuration
from omg.envs import make
from omg.evaluation import report
from omg.evaluation.statistics import Estimate
from omg.stages import Run, Stage, one_by_one, resumed
from omg.utils.logging import console, say
from omg.utils.settings import UserError, choose


class Method(NamedTuple):
    """A row of the comparison: its configuration, and what it changes in it."""

    config: str
    settings: tuple[str, ...] = ()


METHODS = {
    "base": Method("iql"),
    "naive": Method("iql_am"),
    "liam": Method("iql_liam"),
    "omg_optimistic": Method("iql_omg", ("--subgoal_mode=optimistic",)),
    "omg_conservative": Method("iql_omg", ("--subgoal_mode=conservative",)),
}


@dataclass(frozen=True)
class Budget:
    """How much of everything. Steps are those of the whole run (all seats together)."""

    steps: int
    seeds: int
    episodes: int
    pool_steps: int
    pool: tuple[str, ...] = ()
    pretrain: tuple[str, ...] = ()
    train: tuple[str, ...] = ("--batch_size_run=8", "--updates_per_iteration=4")
    methods: tuple[str, ...] = tuple(METHODS)


BUDGETS = {
    "demo": Budget(
        24_000, 1, 20, 8_000,
        ("--pool_algs=[iql]", "--pool_test_algs=[]", "--pool_stages=[0.4,1.0]", "--pool_test_seeds=1"),
        ("--vae_updates=2000", "--vae_episodes=32"),
        ("--batch_size_run=8", "--updates_per_iteration=2", "--length_buckets=1", "--epsilon_anneal_time=12000"),
        ("base", "naive", "omg_conservative"),
    ),
    "small": Budget(120_000, 3, 50, 60_000),
    "paper": Budget(500_000, 5, 100, 200_000),
}  # fmt: skip


class World(NamedTuple):
    """How many times the budget's steps it needs, what else it trains with, and the variants it is compared on."""

    longer: int = 1
    pool_longer: int = 1
    worlds: int | None = None
    """About as many at once, all seats together, instead of the budget's for each seat."""
    train: tuple[str, ...] = ()
    pool: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    variant: str = ""
    """The setting that a variant is a value of: battle's maps."""


WORLDS = {
    "foraging": World(),
    "predator_prey": World(),
    # Teammates of three algorithms; QMIX is met in tests only.
    "battle": World(
        longer=2,
        pool_longer=3,
        worlds=32,
        train=("--updates_per_iteration=8",),
        pool=("--pool_algs=[iql,vdn]", "--pool_test_algs=[qmix]", "--batch_size_run=32", "--updates_per_iteration=8"),
        variants=("8m", "3s_vs_5z"),
        variant="map_name",
    ),
}


class Comparison(NamedTuple):
    """A world, in one of its variants, and the folder of everything about it."""

    world: str
    variant: str | None
    folder: Path

    @property
    def name(self) -> str:
        return f"{self.world} {self.variant}" if self.variant else self.world

    @property
    def env_args(self) -> dict[str, str]:
        return {WORLDS[self.world].variant: self.variant} if self.variant else {}


TITLES = {
    "battle_won": "win rate",
    "return": "return",
    "focal_return": "its own return",
    "ep_length": "steps per episode",
}


def reproduce(words: Sequence[str], budget_name: str, folder: Path, run: Run, jobs: int = 1) -> int:
    """Carries out what is missing; at the end the table and the figure are in the folder."""
    world, variants = parse_words(words)
    budget = _budget(budget_name)
    plan = {"world": world, "budget": budget_name} | ({"variants": variants} if variants else {})
    here = [Comparison(world, v, folder / v) for v in variants] or [Comparison(world, None, folder)]
    planned = [stages(comparison, budget) for comparison in here]
    _same_plan(folder, plan)
    again = f"omg reproduce {' '.join(words)} --budget={budget_name} --run_dir={folder}"
    for comparison, (shared, methods) in zip(here, planned, strict=True):
        comparison.folder.mkdir(parents=True, exist_ok=True)
        try:
            status = one_by_one(shared if jobs > 1 else [*shared, *(s for track in methods for s in track)], run)
            if not status and jobs > 1:
                status = _side_by_side(methods, jobs, comparison.folder)
        except KeyboardInterrupt:
            status = 130
        if status:
            say(f"stopped. To go on from here: {again}")
            return status
        compare(comparison, budget)
    return 0


def _side_by_side(tracks: Sequence[Sequence[Stage]], jobs: int, folder: Path) -> int:
    """Several methods at once, each in processes of its own that write into a file."""
    # Processes that share a GPU take memory as they need it.
    surroundings = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    running: list[subprocess.Popen] = []
    stopping = threading.Event()

    def follow(track: Sequence[Stage]) -> int:
        for stage in track:
            if stage.mark.exists():
                continue
            if stopping.is_set():
                return 130
            log = folder / f"{stage.title.replace(' ', '_')}.log"
            say(f"{stage.title}: omg {' '.join(stage.words)} (see {log})", "bold")
            with log.open("a") as file:
                command = [sys.executable, "-m", "omg", *resumed(stage)]
                # In a session of its own: it hears of Ctrl-C from here alone, and once.
                process = subprocess.Popen(
                    command, stdout=file, stderr=subprocess.STDOUT, env=surroundings, start_new_session=True
                )
                running.append(process)
                status = process.wait()
            if status:
                say(f"{stage.title} ended with status {status}: {log} says why.", "yellow")
                return status if status > 0 else 128 - status
        return 0

    with ThreadPoolExecutor(jobs) as executor, _sigterm_as_ctrl_c():
        futures = [executor.submit(follow, track) for track in tracks]
        try:
            return max(future.result() for future in futures)
        except KeyboardInterrupt:
            # Everybody saves and ends; nothing new begins.
            stopping.set()
            for process in running:
                process.send_signal(signal.SIGINT)
            raise


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _same_plan(folder: Path, plan: dict[str, Any]) -> None:
    """A folder belongs to one comparison: its marks mean nothing for another."""
    path = folder / "plan.json"
    if path.exists() and json.loads(path.read_text()) != plan:
        other = json.loads(path.read_text())
        of = " ".join([other["world"], *other.get("variants", ())])
        raise UserError(
            f"{folder} holds the comparison on {of} with --budget={other['budget']}: choose another --run_dir."
        )
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(plan))


def _budget(name: str) -> Budget:
    if name.isdigit():
        paper = BUDGETS["paper"]
        return Budget(int(name), paper.seeds, paper.episodes, max(int(0.4 * int(name)), 1))
    if name not in BUDGETS:
        raise UserError(f"--budget is one of {', '.join(BUDGETS)}, or a number of steps, not {name!r}.")
    return BUDGETS[name]


def stages(comparison: Comparison, budget: Budget) -> tuple[list[Stage], list[list[Stage]]]:
    """What everybody needs, and what each method does after that."""
    name, _, folder = comparison
    world, pool = WORLDS[name], f"--pool={folder / 'pool'}"
    env_args = configuration.named("envs", name)["env_args"] | comparison.env_args
    agents = make(name, **env_args).spec.n_agents
    here = [f"--env-config={name}", pool, f"--local_results_path={folder}"]
    here += [f"--env_args.{key}={value}" for key, value in comparison.env_args.items()]
    made = [*here, f"--t_max={budget.pool_steps * world.pool_longer}", *world.pool, *budget.pool]
    shared = [
        Stage("a pool of opponents", ["pool", *made], folder / "pool.done"),
        Stage(
            "a VAE of the states they meet",
            ["pretrain", "--config=iql_omg", *here, *budget.pretrain],
            folder / "vae.done",
        ),
    ]
    methods = []
    for row in budget.methods:
        method, home = METHODS[row], folder / row
        settings = [*here, f"--t_max={budget.steps * world.longer // agents}", f"--seeds={budget.seeds}"]
        settings += [f"--run_dir={home}", *budget.train, *world.train, *method.settings]
        if world.worlds:
            settings.append(f"--batch_size_run={max(world.worlds // agents // 4, 1) * 4}")
        settings += ["--test_interval=50000", "--save_replay_buffer=false"]
        if row.startswith("omg"):
            settings.append("--save_replay")
        training = ["train", f"--config={method.config}", *settings]
        strangers = [f"--checkpoint_path={home}", pool, f"--test_nepisode={budget.episodes}"]
        test = ["evaluate", *strangers, f"--run_dir={home / 'strangers'}"]
        methods.append(
            [
                Stage(f"training {row}", training, home / "summary.json"),
                Stage(f"{row} among strangers", test, home / "strangers" / "summary.json"),
            ]
        )
    return shared, methods


def compare(comparison: Comparison, budget: Budget) -> None:
    """Methods side by side: a table, a Markdown file and a figure."""
    folder = comparison.folder
    results = {name: _read(folder / name / "strangers" / "strangers.json") for name in budget.methods}
    some = next(iter(results.values()))
    splits = list(some)
    unseen = "unseen" if "unseen" in splits else splits[-1]
    # Fights are won or lost; everything else is told by its return.
    main = "battle_won" if "battle_won" in some[unseen] else "return"
    others = [m for m in ("return", "focal_return", "ep_length") if m != main]
    columns = [f"{TITLES[main]}, {split}" for split in splits]
    columns += [f"{what}, {unseen}" for what in ("interquartile mean", *(TITLES[m] for m in others))]

    def cells(numbers: dict[str, dict[str, Estimate]]) -> list[str]:
        rest = [f"{numbers[unseen][main].iqm:.3f}", *(str(numbers[unseen][m]) for m in others)]
        return [*(str(numbers[split][main]) for split in splits), *rest]

    table = Table(title=f"{comparison.name} among others: mean [95 % interval over {budget.seeds} seed(s)]")
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for column in ("method", *columns):
        table.add_column(column)
    for name, numbers in results.items():
        row = [name, *cells(numbers)]
        table.add_row(*row)
        lines.append("| " + " | ".join(row) + " |")
    console.print(table)
    (folder / "comparison.md").write_text("\n".join(lines) + "\n")
    for m in (main, *others):
        title = f"{comparison.name}: {TITLES[m]} among others"
        report.comparison(folder / f"comparison_{m}.png", results, m, title)
    say(f"table, figures and replays are in {folder}")


def _read(path: Path) -> dict[str, dict[str, Estimate]]:
    content = json.loads(path.read_text())
    return {split: {m: Estimate(**e) for m, e in numbers.items()} for split, numbers in content.items()}


def parse_words(words: Sequence[str]) -> tuple[str, list[str]]:
    """`battle 8m 3m` is a world and the variants to compare on; without any, the world's usual ones."""
    if not words:
        raise UserError(f"reproduce takes a world: omg reproduce foraging, or {' or '.join(WORLDS)}.")
    name, *variants = words
    world = choose(WORLDS, name, "world to reproduce")
    if variants and not world.variants:
        raise UserError(f"{name} has no variants to choose from: omg reproduce {name}.")
    return name, variants or list(world.variants)
