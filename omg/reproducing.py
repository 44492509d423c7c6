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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rich.table import Table

from omg.evaluation import report
from omg.evaluation.statistics import Estimate
from omg.utils.logging import console, say
from omg.utils.settings import UserError, choose

Run = Callable[[list[str]], int]


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
    """How many agents it has, how many times the budget's steps it needs, and what else it trains with."""

    agents: int
    longer: int = 1
    train: tuple[str, ...] = ()


WORLDS = {
    "foraging": World(2),
    # One predator learns by itself what is worth something mostly in company: slowly.
    "predator_prey": World(3, 4, ("--updates_per_iteration=8",)),
}


class Stage(NamedTuple):
    """One command, and the file by which one sees that it was carried out."""

    title: str
    words: list[str]
    mark: Path


def reproduce(world: str, budget_name: str, folder: Path, run: Run, jobs: int = 1) -> int:
    """Carries out what is missing; at the end the table and the figure are in the folder."""
    choose(WORLDS, world, "world to reproduce")
    budget = _budget(budget_name)
    _same_plan(folder, {"world": world, "budget": budget_name})
    shared, methods = stages(world, budget, folder)
    again = f"omg reproduce {world} --budget={budget_name} --run_dir={folder}"
    try:
        status = _one_by_one(shared if jobs > 1 else [*shared, *(s for track in methods for s in track)], run)
        if not status and jobs > 1:
            status = _side_by_side(methods, jobs, folder)
    except KeyboardInterrupt:
        status = 130
    if status:
        say(f"stopped. To go on from here: {again}")
        return status
    compare(world, budget, folder)
    return 0


def _one_by_one(plan: Sequence[Stage], run: Run) -> int:
    for i, stage in enumerate(plan):
        if stage.mark.exists():
            continue
        say(f"[{i + 1}/{len(plan)}] {stage.title}: omg {' '.join(stage.words)}", "bold")
        status = run(_resumed(stage))
        if status:
            return status
        if not stage.mark.exists():
            stage.mark.write_text("done")
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
                command = [sys.executable, "-m", "omg", *_resumed(stage)]
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


def _same_plan(folder: Path, plan: dict[str, str]) -> None:
    """A folder belongs to one comparison: its marks mean nothing for another."""
    path = folder / "plan.json"
    if path.exists() and json.loads(path.read_text()) != plan:
        other = json.loads(path.read_text())
        raise UserError(
            f"{folder} holds the comparison on {other['world']} with --budget={other['budget']}: "
            "choose another --run_dir."
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


def stages(world: str, budget: Budget, folder: Path) -> tuple[list[Stage], list[list[Stage]]]:
    """What everybody needs, and what each method does after that."""
    pool = f"--pool={folder / 'pool'}"
    here = [f"--env-config={world}", pool, f"--local_results_path={folder}"]
    made = [*here, f"--t_max={budget.pool_steps}", *budget.pool]
    shared = [
        Stage("a pool of opponents", ["pool", *made], folder / "pool.done"),
        Stage(
            "a VAE of the states they meet",
            ["pretrain", "--config=iql_omg", *here, *budget.pretrain],
            folder / "vae.done",
        ),
    ]
    methods = []
    for name in budget.methods:
        method, home, of_world = METHODS[name], folder / name, WORLDS[world]
        steps = budget.steps * of_world.longer // of_world.agents
        settings = [*here, f"--t_max={steps}", f"--seeds={budget.seeds}", f"--run_dir={home}"]
        settings += [
            *budget.train,
            *of_world.train,
            *method.settings,
            "--test_interval=50000",
            "--save_replay_buffer=false",
        ]
        if name.startswith("omg"):
            settings.append("--save_replay")
        training = ["train", f"--config={method.config}", *settings]
        strangers = [f"--checkpoint_path={home}", pool, f"--test_nepisode={budget.episodes}"]
        test = ["evaluate", *strangers, f"--run_dir={home / 'strangers'}"]
        methods.append(
            [
                Stage(f"training {name}", training, home / "summary.json"),
                Stage(f"{name} among strangers", test, home / "strangers" / "summary.json"),
            ]
        )
    return shared, methods


def _resumed(stage: Stage) -> list[str]:
    """A run that was stopped goes on; everything else starts, or knows by itself what is left."""
    run_dir = next((word for word in stage.words if word.startswith("--run_dir=")), "")
    if stage.words[0] == "train" and (Path(run_dir.removeprefix("--run_dir=")) / "config.yaml").exists():
        return ["train", "--resume", run_dir]
    return stage.words


def compare(world: str, budget: Budget, folder: Path) -> None:
    """Methods side by side: a table, a Markdown file and a figure."""
    results = {name: _read(folder / name / "strangers" / "strangers.json") for name in budget.methods}
    splits = list(next(iter(results.values())))
    unseen = "unseen" if "unseen" in splits else splits[-1]
    columns = [f"return, {split}" for split in splits]
    columns += [f"{what}, {unseen}" for what in ("interquartile mean", "its own return", "steps per episode")]

    def cells(numbers: dict[str, dict[str, Estimate]]) -> list[str]:
        other = numbers[unseen]
        rest = [f"{other['return'].iqm:.3f}", str(other["focal_return"]), str(other["ep_length"])]
        return [*(str(numbers[split]["return"]) for split in splits), *rest]

    table = Table(title=f"{world} among others: mean [95 % interval over {budget.seeds} seed(s)]")
    lines = ["| method | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    for column in ("method", *columns):
        table.add_column(column)
    for name, numbers in results.items():
        row = [name, *cells(numbers)]
        table.add_row(*row)
        lines.append("| " + " | ".join(row) + " |")
    console.print(table)
    (folder / "comparison.md").write_text("\n".join(lines) + "\n")
    for measure in ("return", "focal_return", "ep_length"):
        report.comparison(folder / f"comparison_{measure}.png", results, measure, f"{world}: {measure} among others")
    say(f"table, figures and replays are in {folder}")


def _read(path: Path) -> dict[str, dict[str, Estimate]]:
    content = json.loads(path.read_text())
    return {split: {m: Estimate(**e) for m, e in numbers.items()} for split, numbers in content.items()}


def parse_words(words: Sequence[str]) -> str:
    if len(words) != 1:
        raise UserError(f"reproduce takes one world: omg reproduce foraging, or {' or '.join(WORLDS)}.")
    return words[0]
