"""Stages: a list of commands from YAML, each with a folder of its own, run in the order of their dependencies.

A stage is a mapping whose first key is a verb (collect, pool, pretrain, train, evaluate, adapt, compare) with its
subject; its other keys are settings, and `with` holds settings that several stages share. In a subject or setting,
`{name}` stands for the folder of an earlier stage or for a variable of the file or of the budget. The settings that a
budget has for a verb (`train: {…}`) count for all its stages, those under a stage's name for this one. Finished stages
stay finished.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from omg import commands
from omg import config as configuration
from omg.build import known_keys, make_env, resolve
from omg.config import Command
from omg.envs import trust
from omg.evaluation import comparison
from omg.evaluation.adaptation import AdaptSettings
from omg.opponents import zoo
from omg.opponents.pool import PoolSettings
from omg.utils.files import check_name, write_json
from omg.utils.jobs import STATE, Engine, run_jobs
from omg.utils.lock import locked
from omg.utils.ray_engine import RayOptions
from omg.utils.settings import UserError, choose, convert, nearest

OF_A_MODEL = ("evaluate", "adapt")
"""Verbs whose subject is an earlier stage or an agent of the zoo."""
TESTS, POINTS = 10, 50
"""How often a method is tested and logged while it learns, where its steps are a variable of the budget."""
NO_SETTINGS = ("variables", "skip")
"""The keys of a budget that are no settings."""
STAGE_VERBS = ("collect", "pool", "pretrain", "train", *OF_A_MODEL, "compare")


class Stage(NamedTuple):
    """One command, its folder, and the stages that must be finished before it."""

    title: str
    command: Command
    home: Path
    after: tuple[str, ...]

    def words(self) -> list[str]:
        return self.command.as_words()


@dataclass
class Plan:
    """One workflow in one variant, or one task: its stages."""

    name: str
    folder: Path
    stages: list[Stage]


def run_plan(plan: Plan, engine: Engine, whole: bool = True) -> int:
    """Runs what is not finished yet, several stages at once if asked to. Returns the exit status.

    Unless the plan is the `whole` of its folder, the folder may hold finished stages that are not in the plan.
    """
    with locked(plan.folder):
        state = read_state(plan, whole)
        try:
            return run_jobs(plan.stages, engine, plan.folder, state, partial(run_stage, plan=plan))
        except KeyboardInterrupt:
            return 130


def run_stage(stage: Stage, plan: Plan) -> int:
    """One stage in this process."""
    if stage.command.verb == "compare":
        return comparison.compare(plan.name, plan.folder, stage.command.words)
    return commands.run(stage.command)


# --- from YAML to stages


def plan_of(name: str, content: Mapping[str, Any], budget: dict[str, Any], folder: Path, variant: Any) -> Plan:
    """The stages of a workflow for one variant of its environment."""
    env_config = str(content.get("env_config", configuration.DEFAULT_ENV))
    title = Path(name).stem if variant is None else f"{Path(name).stem} {variant}"
    here = folder if variant is None else folder / check_name(str(variant), "variant")
    shared = dict(content.get("settings") or {})
    if variant is not None:
        shared[str(content["variants"]["setting"])] = variant
    env = configuration.load(Command(env_config=env_config, updates=[(k, v) for k, v in shared.items() if "." in k]))
    variables = {**(content.get("variables") or {}), **budget.get("variables", {})}
    for key, value in variables.items():
        if re.search(r"\{\w+\}", str(value)):
            raise UserError(f"the variable {key} is {value!r}: a variable cannot name a stage or another variable.")
    agents = make_env(env).spec.n_agents
    for key in [key for key in variables if key in ("steps", "response_steps")]:
        variables[f"{key}_per_seat"] = max(convert(variables[key], int, key) // agents, 1)
    if "steps" in variables:
        # Intervals count the steps of all seats, as `steps` does.
        steps = convert(variables["steps"], int, "steps")
        variables = {
            "test_interval": max(steps // TESTS, 1),
            "log_interval": max(steps // POINTS, 1),
            **variables,
        }
    if content.get("envs"):
        variables["envs_per_seat"] = max(int(content["envs"]) // agents // 4, 1) * 4
    builder = _Builder(env_config, shared, budget, here, variables)
    for i, stage in enumerate(content["stages"]):
        builder.add(i, stage)
    known = [*NO_SETTINGS, *STAGE_VERBS, *builder.homes, *builder.skipped]
    for key in map(str, budget):
        if key not in known:
            raise UserError(f"a budget has settings of {key!r}, which is no verb and no stage.{nearest(key, known)}")
    return Plan(title, here, builder.stages)


class _Builder:
    """Collects stages in order; later ones refer to earlier ones."""

    def __init__(self, env_config: str, shared: dict, budget: dict, folder: Path, variables: dict[str, Any]):
        self.env_config, self.shared, self.budget, self.folder, self.variables = (
            env_config, shared, budget, folder, variables,
        )  # fmt: skip
        self.stages: list[Stage] = []
        self.homes: dict[str, Path] = {}
        self.skipped = set(budget.get("skip", ()))
        self.trained: str | None = None

    def add(self, i: int, stage: Any) -> None:
        stage = {stage: None} if stage in OF_A_MODEL else stage
        if not isinstance(stage, dict) or not stage:
            raise UserError(f"stage {i + 1} is not a mapping: it starts with a verb, as in 'train: ppo'.")
        (verb, subject), *rest = stage.items()
        if verb not in STAGE_VERBS:
            raise UserError(
                f"stage {i + 1} starts with {verb!r}; it must be one of {', '.join(STAGE_VERBS)}."
                f"{nearest(str(verb), STAGE_VERBS)}"
            )
        own = dict(rest)
        common = own.pop("with", {})
        if not isinstance(common, dict):
            raise UserError(f"'with' in stage {i + 1} is not a mapping of settings.")
        values = {**self.shared, **common, **own, **self.budget.get(str(verb), {})}
        if verb == "pretrain" and subject == "vae":
            subject = "hop_plus"
        if verb in OF_A_MODEL and subject is None:
            subject = self.trained
            if subject is None:
                raise UserError(f"stage {i + 1} ({verb}) comes before anything is trained.")
        of = "_".join(map(str, subject)) if isinstance(subject, list) else subject
        of = of.replace(":", "_").replace("/", "_") if isinstance(of, str) and zoo.in_zoo(of) else of
        title = check_name(str(values.pop("name", f"{verb}_{of}" if subject else verb)), "stage")
        if title in self.homes:
            raise UserError(f"two stages are called {title}: give one a name of its own (name: …).")
        if title in NO_SETTINGS:
            raise UserError(f"a stage cannot be called {title}: this is a key of budgets.")
        values |= self.budget.get(title, {})
        home = self.folder / title
        after: set[str] = set()
        subject = self._fill(subject, after)
        if verb in OF_A_MODEL and not zoo.in_zoo(subject):
            after.add(str(subject))
        filled = {key: self._fill(value, after) for key, value in values.items()}
        if title in self.skipped or after & self.skipped:
            self.skipped.add(title)
            return
        self.homes[title] = home
        self.trained = title if verb == "train" else self.trained
        self.stages.append(
            Stage(title, self._command(str(verb), subject, home, filled, after), home, tuple(sorted(after)))
        )

    def _command(self, verb: str, subject: Any, home: Path, filled: dict, after: set[str]) -> Command:
        updates: list[tuple[str, Any]] = list(filled.items())
        if verb == "compare":
            named = [str(s) for s in subject or []]
            words = [s for s in named if s in self.homes]
            after |= set(words)
            return Command("compare", words=words)
        if verb in OF_A_MODEL:
            model = subject if zoo.in_zoo(subject) else choose(self.homes, str(subject), "earlier stage")
            # A test does not take the shared settings that belong to the environment.
            updates = [(k, v) for k, v in updates if k not in self.shared]
            return Command(verb, updates=[("checkpoint_path", str(model)), ("run_dir", str(home)), *updates])
        updates.append(("local_results_path", str(self.folder)))
        if verb == "pool":
            return Command(verb, None, self.env_config, [*updates, ("pool", str(home))])
        updates.append(("run_dir", str(home)))
        if verb == "collect":
            return Command(verb, None, self.env_config, [("pool", str(subject)), *updates])
        if verb == "train":
            # Idempotent: it starts, or continues.
            updates.append(("resume", True))
        return Command(verb, str(subject), self.env_config, updates)

    def _fill(self, value: Any, after: set[str]) -> Any:
        """A setting with the folders of earlier stages and with variables in place of their names."""
        if not isinstance(value, str):
            return value
        alone = re.fullmatch(r"\{(\w+)\}", value)
        if alone and alone[1] in self.variables and alone[1] not in {*self.homes, *self.skipped}:
            return self.variables[alone[1]]

        def replace(match: re.Match) -> str:
            name = match.group(1)
            if name in self.homes:
                after.add(name)
                return str(self.homes[name])
            if name in self.skipped:
                after.add(name)
                return ""
            if isinstance(self.variables.get(name), list | dict):
                raise UserError(f"{value[:80]!r}: the variable {name} is a list or mapping, not a part of a text.")
            if name in self.variables:
                return str(self.variables[name])
            known = ", ".join([*self.homes, *self.variables]) or "none"
            raise UserError(f"{value[:80]!r} names a stage that is not before it; so far there are {known}.")

        return re.sub(r"\{([^{}]*)\}", replace, value)


def check_trust(content: Any, command: Command) -> None:
    """The modules that a file names were not typed: they are imported only with `--trust`."""
    for module in modules_in(content):
        trust.allow(module) if command.trust else trust.check(module)


def modules_in(content: Any, key: str = "") -> Iterator[str]:
    """The modules of environments (`env_args.name`) that a workflow names, in its settings or in its stages."""
    if isinstance(content, Mapping):
        for inner, value in content.items():
            yield from modules_in(value, f"{key}.{inner}")
    elif isinstance(content, list):
        for value in content:
            yield from modules_in(value, key)
    elif isinstance(content, str) and key.endswith(".env_args.name"):
        yield content


ENGINE = ("jobs", "engine", "ray_address", "gpus_per_run")
"""The options of `engine_of`."""
ON_RAY = 64
"""Jobs that a Ray cluster is given at once, unless --jobs says otherwise; it decides how many run."""


def engine_of(command: Command) -> Engine:
    """Where the jobs of a command run: --jobs in processes of this machine, or --engine=ray."""
    name = command.get("engine", "processes")
    if name not in ("processes", "ray"):
        raise UserError(f"engine is {name!r}; it is processes or ray.")
    if name != "ray" and (command.get("ray_address") or command.get("gpus_per_run")):
        raise UserError("ray_address and gpus_per_run are for --engine=ray.")
    jobs = convert(command.get("jobs", ON_RAY if name == "ray" else 1), int, "jobs")
    if jobs < 1:
        raise UserError(f"jobs is {jobs}; it must be 1 or more.")
    if name != "ray":
        return Engine(jobs)
    gpus = convert(command.get("gpus_per_run", 0.0), float, "gpus_per_run")
    if not 0 <= gpus < math.inf or (gpus > 1 and not gpus.is_integer()):
        raise UserError(f"gpus_per_run is {gpus}; it must be 0 or more, and above 1 a whole number.")
    return Engine(jobs, RayOptions(convert(command.get("ray_address"), str | None, "ray_address"), gpus))


def check(plan: Plan, parent: Command) -> None:
    """What is wrong with a later stage is reported before an earlier one has run for hours.

    Stages import the user's own modules, and trust modules that files name, if the command that runs them does.
    """
    for stage in plan.stages:
        command = stage.command
        command.imports, command.trust = parent.imports, parent.trust
        try:
            if command.verb in OF_A_MODEL:
                if zoo.in_zoo(model := command.get("checkpoint_path")):
                    zoo.agent_folder(str(model))
                known = known_keys((AdaptSettings,))
                for key in command.typed_keys():
                    if key not in known:
                        raise UserError(f"unknown key {key!r}.{nearest(key, known)}")
                if trained := next((s.command for s in plan.stages if str(s.home) == str(model)), None):
                    _check_test(command, trained)
            elif command.verb == "pool":
                configuration.load(command)
            elif command.verb != "compare":
                extra = getattr(commands.module_of(command.verb), "EXTRA", ())
                resolve(configuration.load(command), command.typed_keys(), extra)
        except UserError as error:
            raise UserError(f"in stage {stage.title}: {error}") from error


def _check_test(test: Command, trained: Command) -> None:
    """The settings of a test are those of the model that an earlier stage trains."""
    own = [key for key in test.typed_keys() if key not in ("checkpoint_path", "pool")]
    changes = [(key, value) for key, value in test.updates if key in own]
    config = configuration.override(configuration.load(trained), Command(updates=changes))
    extra = [AdaptSettings] if test.verb == "adapt" else []
    resolve(config, own, [*extra, *([PoolSettings] if test.get("pool") else [])])


def read_state(plan: Plan, whole: bool = True) -> dict[str, Any]:
    """What earlier calls did in this folder. A stage that was begun with other settings is refused."""
    path = plan.folder / STATE
    state: dict[str, Any] = {}
    if path.exists():
        try:
            state = json.loads(path.read_text())
            earlier = {str(title): [str(w) for w in entry["words"]] for title, entry in state.items()}
        except (OSError, ValueError, AttributeError, TypeError, KeyError) as error:
            raise UserError(f"{path} is damaged: remove it, or choose another --run_dir.") from error
        now = {stage.title: stage.words() for stage in plan.stages}
        if changed := [title for title, words in earlier.items() if now.get(title, None if whole else words) != words]:
            raise UserError(f"{plan.folder} holds another stage {changed[0]}: choose another --run_dir.")
    write_json(path, state)
    return state
