"""`omg benchmark`: scores of methods with unseen partners, on tasks where knowing the partner pays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from omg import config as configuration
from omg.artifacts import open_pool
from omg.build import make_env, needs_of
from omg.commands import stages
from omg.commands.stages import check_trust
from omg.config import Command
from omg.evaluation.recording import check_render
from omg.evaluation.scoreboard import (
    BOUNDS,
    TaskBounds,
    best_returns,
    draw,
    read_rows,
    returns_of,
    scripted_returns,
    show,
    show_together,
    write_rows,
)  # fmt: skip
from omg.evaluation.scores import Bounds, estimate_scores
from omg.learners.am_learner import VAESettings
from omg.opponents import REGISTRY as scripted_REGISTRY
from omg.opponents import zoo
from omg.opponents.scripted import name_of
from omg.opponents.seating import SPLITS_OF
from omg.utils.files import check_name, check_writable, write_json
from omg.utils.logging import say
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, convert, names_of, nearest

SUMMARY = """\
Trains methods with the training partners of a task and scores them with its unseen partners. A score is 0 for random
play and 1 for the best response that is known: an agent trained with that partner alone, or a scripted policy. The
table also has the best scripted policy, the oracle (trained with the unseen partners and given their identity) and,
except with --budget=tiny, the blind learner (the same without the identity): the oracle minus the blind learner is the
task's value of knowing. The best scripted policy is chosen by its scores with these partners. Several tasks are also
scored together, and every method minus base. Finished stages are not repeated.

options:
  --methods=base,liam,…  which methods to train: base, naive, liam, omg, omg_plus, meliba, mix (default: all; with the
                         budget tiny base and liam), and those that the task's YAML file defines under `methods`
  --budget=small         tiny (minutes on two cores), small or paper
  --jobs=1               number of stages that run at once, each in its own process with a log file
  --engine=ray           on a Ray cluster (--ray_address=auto, --gpus_per_run=0.25)
  --new_partners         train partners and bounds anew instead of taking those of the zoo (zoo:TASK)
  --save_replay          an animation of one episode of the last method's agent (the zoo's, if it ships), with what its
                         agent model infers
  --run_dir=DIR          folder of all results; default: results/benchmark_<budget>"""
EXAMPLES = [
    "omg benchmark lbf_7x7 --budget=tiny --methods=base,liam",
    "omg benchmark lbf_7x7 --budget=paper --jobs=4",
]
METHODS = {
    "base": "ppo",
    "naive": "ppo_am",
    "liam": "ppo_liam",
    "omg": "ppo_omg",
    "omg_plus": "ppo_omg_plus",
    "meliba": "ppo_meliba",
    "mix": "ppo_mix",
}
"""Method → configuration. All bounds learn by PPO, and so do all methods that a task does not define itself."""
QUICK = ("base", "liam")
"""The methods of the budget `tiny`, unless others are asked for."""
KEYS = ("env_config", "measure", "settings", "pool", "train", "methods", "budgets")
VARIABLES = ("steps", "response_steps", "pool_steps", "seeds", "episodes")
LEARNER = "ppo"
ENOUGH = 0.95
"""A trained best response that scores less is said to be below a scripted policy."""
LEAST = 0.1
"""A partner is left out if a best response gains less than this fraction of the largest gain."""


class Task(NamedTuple):
    """A task from its YAML file, with one of its budgets."""

    name: str
    content: dict[str, Any]
    budget: dict[str, Any]
    from_zoo: bool
    """Partners and bounds are those that ship with the package."""

    @property
    def measure(self) -> str:
        return str(self.content.get("measure", "return"))

    @property
    def shipped(self) -> list[str]:
        """The trained agents that ship with the task, as `zoo:TASK/METHOD`."""
        return [f"{self.pool}/{method}" for method in zoo.agents_of(self.name)] if self.from_zoo else []

    @property
    def methods(self) -> dict[str, dict[str, Any]]:
        """Every method's configuration and its settings; the task's own methods after the usual ones."""
        own = self.content.get("methods") or {}
        return {name: {"config": config} for name, config in METHODS.items()} | own

    @property
    def pool(self) -> str:
        return f"{zoo.PREFIX}{self.name}" if self.from_zoo else "{pool}"


def title_of(trained: str) -> str:
    """The name of an agent in files and tables: `base`, or `zoo_base` for the one that ships."""
    return f"zoo_{trained.rpartition('/')[2]}" if zoo.in_zoo(trained) else trained


def settings(command: Command) -> list[type]:
    return []


def main(command: Command) -> int:
    known = configuration.available("tasks")
    if not command.words:
        raise UserError(f"benchmark takes tasks: omg benchmark lbf_7x7 … Known: {', '.join(known)}.")
    load_plugins(command.imports)
    if command.config or command.env_config or command.files:
        raise UserError("a task's settings are in its YAML file: leave out --config, --env-config and with.")
    options = ("methods", "budget", *stages.ENGINE, "new_partners", "save_replay", "run_dir", "local_results_path")
    for key, _ in command.updates:
        if key not in options:
            raise UserError(f"benchmark takes {', '.join(f'--{o}' for o in options)}; --{key} has no effect here.")
    engine = stages.engine_of(command)
    budget = str(command.get("budget", "small"))
    results = Path(str(command.get("local_results_path", "results")))
    folder = check_writable(Path(str(command.get("run_dir") or results / f"benchmark_{budget}")))
    new_partners = convert(command.get("new_partners", False), bool, "new_partners")
    tasks = [read(name, budget, new_partners) for name in command.words]
    if len({task.name for task in tasks}) < len(tasks):
        raise UserError(f"{' '.join(command.words)}: every task is named once, and two files have two names.")
    usual = QUICK if command.get("budget") == "tiny" else METHODS
    methods = methods_of(command.get("methods", list(usual)), tasks)
    for task in tasks:
        check_trust(task.content, command)
    replay = convert(command.get("save_replay", False), bool, "save_replay")
    plans = [(task, plan_of(task, methods, folder / task.name, replay)) for task in tasks]
    for _, plan in plans:
        stages.check(plan, command)
    path = folder / "benchmark.csv"
    rows = [row for row in read_rows(path) if row["task"] not in {task.name for task in tasks}]
    for task, plan in plans:
        if status := stages.run_plan(plan, engine, whole=False):
            say(f"stopped. To continue: omg {' '.join(command.as_words())}")
            return status
        rows += score(task, plan.folder, methods)
        write_rows(path, rows)
        if replay:
            say(f"one episode: {plan.folder / replay_of(task, methods) / 'replay.gif'}")
        if budget == "tiny":
            say(what_next(task, plan.folder, methods, command))
    if len(tasks) > 1:
        shipped = [[title_of(agent) for agent in task.shipped] for task in tasks]
        of_all = [name for name in shipped[0] if all(name in names for names in shipped)]
        show_together(rows, [task.name for task in tasks], [*of_all, *methods])
    print(folder)
    return 0


def methods_of(value: Any, tasks: Sequence[Task]) -> list[str]:
    """The methods that were asked for; every task must know them."""
    names = value.split(",") if isinstance(value, str) else value
    known = [name for name in tasks[0].methods if all(name in task.methods for task in tasks)]
    if not isinstance(names, list) or not names or not all(name in known for name in names):
        raise UserError(f"--methods is a list of {', '.join(known)}, as in --methods=base,liam; not {value!r}.")
    return list(dict.fromkeys(names))


def read(name: str, budget: str, new_partners: bool = False) -> Task:
    content = configuration.inherited("tasks", name)
    for key in map(str, content):
        if key not in KEYS:
            raise UserError(f"unknown key {key!r} in task {name}.{nearest(key, list(KEYS))}")
    for key in ("settings", "pool", "train", "methods", "budgets"):
        if not isinstance(content.get(key) or {}, dict):
            raise UserError(f"{key} in task {name} are not key: value.")
    for method, of_method in (content.get("methods") or {}).items():
        if not isinstance(of_method, dict) or "config" not in of_method:
            raise UserError(f"the method {method} of task {name} needs a config, as in {{config: ppo_liam}}.")
        if method in BOUNDS:
            raise UserError(f"{method} in task {name} is a bound: give the method another name.")
        check_name(str(method), "method")
    budgets = content.get("budgets") or {}
    if budget not in budgets:
        raise UserError(f"--budget is one of {', '.join(budgets) or 'none'}, not {budget!r}.")
    env = content.get("env_config")
    if not isinstance(budgets[budget], dict) or not isinstance(budgets[budget].get("variables"), dict):
        raise UserError(f"the budget {budget} of task {name} needs variables: {', '.join(VARIABLES)}.")
    variables = budgets[budget]["variables"]
    if not env or any(v not in variables for v in VARIABLES):
        raise UserError(f"task {name} needs env_config, and variables in each budget: {', '.join(VARIABLES)}.")
    if {*budgets[budget].get("skip", ())} - {"blind"}:
        raise UserError(f"task {name}: only blind may be skipped.")
    if "random" not in scripted_REGISTRY.get(name_of(configuration.named("envs", str(env))), {}):
        raise UserError(f"task {name}: {env} has no scripted policies; a task needs at least random play.")
    title = Path(name).stem
    from_zoo = not new_partners and title == name and name in zoo.tasks()
    return Task(title, content, dict(budgets[budget]), from_zoo)


def shown(task: Task, methods: Sequence[str]) -> str:
    """Whose replay is drawn: the agent of the last method, the one that ships if there is one."""
    shipped = f"{task.pool}/{methods[-1]}"
    return shipped if shipped in task.shipped else methods[-1]


def replay_of(task: Task, methods: Sequence[str]) -> str:
    return f"{title_of(shown(task, methods))}_replay"


def plan_of(task: Task, methods: Sequence[str], folder: Path, replay: bool = False) -> stages.Plan:
    """The stages: partners, bounds, methods, and every trained agent with every partner."""
    shared = {"pool": task.pool, "seeds": "{seeds}", "t_max": "{steps_per_seat}"}
    own = task.content.get("settings") or {}
    shared |= {key: f"{{{key}}}" for key in ("test_interval", "log_interval") if key not in own}
    shared |= task.content.get("train") or {}
    unseen = shared | {"partners": "unseen"}
    response = unseen | {"seeds": 1, "one_partner_each": True, "t_max": "{response_steps_per_seat}"}
    made: list[dict[str, Any]] = [
        {"pool": None, "t_max": "{pool_steps}", **(task.content.get("pool") or {})},
        {"train": LEARNER, "name": "best_response", "test_nepisode": "{episodes}", "with": response},
        {"train": f"{LEARNER}_oracle", "name": "oracle", "with": unseen},
        {"train": LEARNER, "name": "blind", "with": unseen},
    ]
    listed = [] if task.from_zoo else made
    for method in methods:
        listed += training(task, method, shared)
    for trained in (*(() if task.from_zoo else ("oracle", "blind")), *methods, *task.shipped):
        test = {"pool": task.pool, "test_nepisode": "{episodes}"}
        listed.append({"evaluate": trained, "name": f"{title_of(trained)}_partners", "with": test})
    if replay:
        once = {"pool": task.pool, "test_nepisode": 1, "save_replay": True}
        listed.append({"evaluate": shown(task, methods), "name": replay_of(task, methods), "with": once})
    content = {"env_config": task.content["env_config"], "settings": task.content.get("settings"), "stages": listed}
    updates = list((content["settings"] or {}).items())
    env = make_env(configuration.load(Command(env_config=str(content["env_config"]), updates=updates)))
    measures = ("return", "focal_return", *jax.eval_shape(env.reset, jax.random.key(0))[1].info)
    if task.measure not in measures:
        raise UserError(f"measure in task {task.name} is one of {', '.join(measures)}, not {task.measure!r}.")
    if replay:
        check_render(env)
    return stages.plan_of(task.name, content, task.budget, folder, None)


def training(task: Task, method: str, shared: dict[str, Any]) -> list[dict[str, Any]]:
    """The stages that train one method: before it the VAE, if it needs one."""
    own = dict(task.methods[method])
    name = str(own.pop("config"))
    only_vae = names_of(VAESettings)
    train = {"train": name, "name": method, "with": shared | {k: v for k, v in own.items() if k not in only_vae}}
    env = str(task.content["env_config"])
    config = configuration.load(Command(config=name, env_config=env, updates=list(own.items())))
    if "vae" not in needs_of(config):
        return [train]
    vae = f"vae_of_{method}"
    decide = ("obs_is_state", "subgoal_of", "subgoal_features")
    of_vae = {key: value for key, value in own.items() if key.startswith("vae") or key in decide}
    return [{"pretrain": name, "name": vae, "pool": task.pool, **of_vae}, train | {"vae_path": f"{{{vae}}}"}]


# --- scores


def measured(task: Task, folder: Path) -> TaskBounds:
    """What random play, scripted policies, best responses, oracle and blind learner earn with the unseen partners."""
    config = configuration.read_yaml(folder / "best_response" / "config.yaml")
    env, pool = make_env(config), open_pool(config)
    ids = pool.ids(SPLITS_OF["unseen"])
    names = [pool.members[i].name for i in ids]
    trained = best_returns(folder / "best_response" / "summary.json", task.measure, len(ids))
    scripted = scripted_returns(env, pool, ids, int(task.budget["variables"]["episodes"]), task.measure)
    # The best response that is known.
    bounds = Bounds(scripted["random"], np.maximum(trained, np.max(list(scripted.values()), 0)))
    kept = bounds.usable(LEAST)
    if not kept.any():
        raise UserError(f"{task.name}: no best response earns more than random play; it needs a larger budget.")
    if not kept.all():
        left_out = ", ".join(n for n, k in zip(names, kept, strict=True) if not k)
        say(f"left out, because a best response gains next to nothing with them: {left_out}.", "yellow")
    names = [name for name, k in zip(names, kept, strict=True) if k]
    bounds, scripted = Bounds(*(x[kept] for x in bounds)), {p: returns[kept] for p, returns in scripted.items()}
    if below := int((bounds.score(trained[kept]) < ENOUGH).sum()):
        say(f"best responses: with {below} of {len(names)} partners a scripted policy earns more than the trained one.")
    strongest = max(scripted, key=lambda p: float(bounds.score(scripted[p]).mean()))
    returns = {"random": scripted["random"][None], "scripted": scripted[strongest][None]}
    for name in ("blind", "oracle"):
        if (folder / f"{name}_partners").exists():
            returns[name] = returns_of(folder / f"{name}_partners" / "opponents.csv", names, task.measure)
    return TaskBounds(names, strongest, returns | {"best_response": bounds.best[None]})


def score(task: Task, folder: Path, methods: Sequence[str]) -> list[dict[str, Any]]:
    """Every method and bound with every unseen partner; prints the table and draws the figure."""
    if task.from_zoo:
        known = TaskBounds.read(zoo.folder_of(task.pool) / zoo.BOUNDS)
    else:
        known = measured(task, folder)
        known.write(folder / zoo.BOUNDS)
    tested = {
        name: returns_of(folder / f"{name}_partners" / "opponents.csv", known.partners, task.measure)
        for name in (*map(title_of, task.shipped), *methods)
    }
    found = known.returns | tested
    bounds = Bounds(found["random"][0], found["best_response"][0])
    scores = {name: bounds.score(returns) for name, returns in found.items()}
    estimates = {name: estimate_scores(s) for name, s in scores.items()}
    order = [*(b for b in BOUNDS if b in found), *tested]
    show(task.name, order, estimates, scores, known.strongest, len(known.partners))
    draw(folder / "scores.png", task.name, order, estimates)
    knowing = estimates["oracle"].mean - estimates["blind"].mean if "blind" in estimates else None
    write_json(folder / "scores.json", {"value_of_knowing": knowing, **{n: e._asdict() for n, e in estimates.items()}})
    return [
        {"task": task.name, "method": name, "partner": partner, "seed": seed, "return": returns[seed, i], "score": s}
        for name, returns in found.items()
        for i, partner in enumerate(known.partners)
        for seed, s in enumerate(scores[name][:, i])
    ]


def what_next(task: Task, folder: Path, methods: Sequence[str], command: Command) -> str:
    """After a short run: what was found, what a longer one shows, and commands."""
    found = json.loads((folder / "scores.json").read_text())

    def scores(names: Sequence[str]) -> str:
        return ", ".join(f"{name} {found[name]['iqm']:.2f}" for name in names)

    steps, shipped = int(task.budget["variables"]["steps"]), [title_of(agent) for agent in task.shipped]
    text = f"{task.name}, unseen partners (0: random play, 1: best response). After {steps:,} steps: {scores(methods)}"
    text += f"; trained for longer (the agents that ship with the package) {scores(shipped)}." if shipped else "."
    if (knowing := found.get("value_of_knowing")) is not None:
        text += f" Knowing the partner is worth {knowing:.2f} (oracle minus blind learner)."
    pool = task.pool if task.from_zoo else str(folder / "pool")
    lines = [f"{text}\nNext:", f"omg view {folder.parent}"]
    lines.append(f"omg evaluate --checkpoint_path={folder / methods[-1]} --pool={pool}")
    if "small" in task.content["budgets"]:
        kept = [(key, value) for key, value in command.updates if key not in ("budget", "run_dir", "save_replay")]
        lines.append(f"omg {' '.join(replace(command, updates=[*kept, ('budget', 'small')]).as_words())}")
    return "\n  ".join(lines)
