"""`omg train`: trains a team, or one agent with frozen partners; resumes a run that was stopped."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import warnings
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import jax
import yaml

from omg import config as configuration
from omg.artifacts import open_pool
from omg.build import Experiment, args_sanity_check, build, resolve, settings_of
from omg.commands import SACRED_COMMANDS
from omg.commands.common import configure, names_in_replay, prepared, trust_modules
from omg.config import Command
from omg.evaluation.figures import learning_curve
from omg.evaluation.recording import check_render, record_focal, record_team
from omg.evaluation.replay import save_replay
from omg.training import hosts
from omg.training.restore import check_seeds, goes_on, load_learner, start_of
from omg.training.settings import RunSettings
from omg.training.trainer import Trainer
from omg.utils import checkpoints, device
from omg.utils.files import check_writable, make_folder, write_json, write_text
from omg.utils.interrupts import Interrupts
from omg.utils.lock import locked
from omg.utils.logging import Logger, say, show
from omg.utils.plugins import load_plugins
from omg.utils.settings import UserError, fill
from omg.utils.trackers import check_tracker, make_tracker

SUMMARY = """\
Trains an algorithm (--config) on an environment (--env-config). With --pool, or with an algorithm that has an agent
model, one agent learns among frozen others. A run writes config.yaml, metrics.jsonl, TensorBoard events, checkpoints,
summary.json and a learning curve into its folder, and prints the folder. Ctrl-C saves a checkpoint first."""
EXAMPLES = [
    "omg train --config=qmix --env-config=foraging --seed=3 --t_max=200000 with env_args.grid_size=10",
    "omg train --config=ppo --env-config=stag_hunt --pool=rules --seeds=5",
    "omg train --config=1vdn1iql_omg --multi_algs --env-config=foraging",
    "omg train --config=iql --env-config=foraging --run_dir=results/mine --resume",
]
MAY_CHANGE = (
    "run_dir", "resume", "evaluate", "local_results_path", "use_cuda", "debug", "compilation_cache", "use_tensorboard",
    "mongo_url", "tracker", "keep_checkpoints", "save_replay", "worker_timeout", "devices",
    "coordinator", "hosts", "host",
)  # fmt: skip
"""Settings that may differ when a run is resumed: they do not change what is learned."""
Prepared = tuple[dict[str, Any], None, tuple[Experiment, Path, checkpoints.Checkpoint | None]]
"""What `under_sacred` takes for a run."""


def settings(command: Command) -> list[type]:
    """The settings that this command line reads: those of the run and of the chosen components."""
    load_plugins(command.imports)
    return settings_of(resolve(configuration.load(command))[0])


def main(command: Command) -> int:
    if command.verb in SACRED_COMMANDS:
        return under_sacred(configure(command), command.verb, None)
    hosts.join(command.get("coordinator"), command.get("hosts"), command.get("host"))
    run_dir = command.get("run_dir")
    if hosts.several() and not isinstance(run_dir, str):
        raise UserError("several hosts need one folder that all of them can read: add --run_dir=DIR.")
    if command.get("resume"):
        if not isinstance(run_dir, str):
            raise UserError("--resume needs to know which run: add --run_dir=DIR (a folder under results/).")
        if hosts.of_first((Path(run_dir) / "config.yaml").is_file()):
            return resume(command, Path(run_dir))
        if not command.config and not command.env_config:
            raise UserError(
                f"there is no run to resume in {run_dir}: it has no config.yaml. To start it there, add --config and "
                "--env-config."
            )
    config = configure(command)
    if config["mongo_url"] and importlib.util.find_spec("pymongo") is None:
        raise UserError("--mongo_url needs pymongo: pip install pymongo.")
    check_tracker(config["tracker"])
    with ExitStack() as stack:
        with hosts.all_or_none():
            folder = new_folder(config) if hosts.leads() else hosts.own_folder(Path())
            prepared_run = prepare(config, folder)
            stack.enter_context(locked(folder))
            if (folder / "config.yaml").exists():
                raise UserError(f"another process has begun a run in {folder}: repeat the command with --resume.")
        check_hosts(prepared_run, folder)
        return under_sacred(*prepared_run)


def resume(command: Command, folder: Path) -> int:
    """Continues the run in a folder, which no other process may change from here on."""
    with ExitStack() as stack:
        with hosts.all_or_none():
            # Nothing is written into the folder of a finished run.
            if not (folder / "summary.json").exists():
                stack.enter_context(locked(check_writable(hosts.own_folder(folder))))
            run = _resumed(command, folder)
        check_hosts(run, folder)
        if run:
            return under_sacred(*run)
    say(f"the run in {folder} is finished: nothing to do.")
    print(folder)
    return 0


def check_hosts(run: Prepared | None, folder: Path) -> None:
    """All hosts start from the same checkpoint."""
    at = run[2][2].t_env if run and run[2][2] else -1
    if hosts.largest(hosts.of_first(at) != at):
        raise UserError(f"the hosts do not see the same checkpoints in {folder}.")


def _resumed(command: Command, folder: Path) -> Prepared | None:
    """The run in a folder; None if it is finished.

    The same settings are accepted again; settings that differ are refused by name.
    """
    load_plugins(command.imports)
    saved = configuration.without_gone(configuration.read_yaml(folder / "config.yaml"))
    trust_modules(command, saved)
    typed = command.typed_keys()
    whole = bool(command.config or command.env_config)
    asked = configuration.load(command) if whole else configuration.override(saved, command)
    asked, _ = args_sanity_check(resolve(asked, typed)[0])
    # A run of an earlier version has the defaults of settings that it did not know.
    had = {key: value for key, value in configuration.defaults().items() if key in asked} | saved
    differ = sorted(
        key
        for key in {*had, *asked}
        if key not in MAY_CHANGE and (whole or key in typed) and had.get(key) != asked.get(key)
    )
    if differ:
        changes = ", ".join(f"{key} ({had.get(key)} → {asked.get(key)})" for key in differ[:5])
        raise UserError(
            f"the run in {folder} has other settings: {changes}. Leave them out to resume it, or start a new run "
            f"(from its model: --checkpoint_path={folder})."
        )
    if (folder / "summary.json").exists():
        return None
    check_config(saved, folder)
    changed = {key: asked[key] for key in MAY_CHANGE if key in typed and key in asked}
    config = prepared(saved | changed | {"resume": True, "run_dir": str(folder)}, [])
    return prepare(config, folder)


def check_config(saved: dict[str, Any], folder: Path) -> None:
    """A configuration that is not the one in the run's own checkpoint was altered."""
    checkpoint, _ = checkpoints.newest_whole(folder / "checkpoints")
    saved = json.loads(json.dumps(saved, default=str))  # as a manifest holds it
    known = checkpoint.manifest.get("config", saved) if checkpoint else saved
    keys = {*known, *saved} - {*MAY_CHANGE}
    if differ := sorted(key for key in keys if known.get(key) != saved.get(key)):
        raise UserError(
            f"{folder / 'config.yaml'} was altered: {differ[0]} is {saved.get(differ[0])!r}, in the checkpoint "
            f"{known.get(differ[0])!r}."
        )


def new_folder(config: dict[str, Any]) -> Path:
    """The folder of a new run. It is not created yet; a folder that holds a run is refused."""
    if config.get("run_dir"):
        folder = Path(str(config["run_dir"]))
        if (folder / "config.yaml").exists():
            raise UserError(f"{folder} already holds a run: add --resume to continue it, or choose another folder.")
    else:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        base = f"{config['name']}__{configuration.env_label(config)}__seed{config['seed']}__{stamp}"
        results = Path(str(config["local_results_path"]))
        folder, again = results / base, 1
        while folder.exists():
            again += 1
            folder = results / f"{base}-{again}"
    return check_writable(folder)


def prepare(config: dict[str, Any], folder: Path) -> Prepared:
    """Checks and builds everything before a folder exists."""
    config, notices = args_sanity_check(config)
    for notice in notices:
        say(notice, "yellow")
    run = fill(RunSettings, config)
    checkpoint = start_of(run, folder)
    experiment = build(config, saved=checkpoint)
    if run.save_replay:
        check_render(experiment.env)
    if checkpoint is not None:
        if not goes_on(run, checkpoint) and checkpoint.t_env >= experiment.settings.t_max:
            seats = experiment.settings.t_max // run.t_max
            raise UserError(
                f"the model already has {checkpoint.t_env} steps: --t_max must be larger than "
                f"{checkpoint.t_env // seats}."
            )
        check_seeds(checkpoint, run.seeds)
        load_learner(experiment.loop, checkpoint)
    folder = make_folder(hosts.own_folder(folder))
    return config, None, (experiment, folder, checkpoint)


def under_sacred(config: dict[str, Any], sacred_command: str | None, prepared_run: Any) -> int:
    """`my_main` as Sacred's main function; or one of Sacred's own commands on the configuration."""
    with warnings.catch_warnings():
        # Sacred imports pkg_resources, which warns that it is deprecated.
        warnings.simplefilter("ignore")
        from sacred import SETTINGS, Experiment
        from sacred.observers import FileStorageObserver

    SETTINGS["CAPTURE_MODE"] = "no"
    SETTINGS["CONFIG"]["READ_ONLY_CONFIG"] = False
    SETTINGS["HOST_INFO"]["INCLUDE_GPU_INFO"] = False
    experiment = Experiment("omg", save_git_info=False)
    experiment.add_config(copy.deepcopy(config))

    @experiment.main
    def my_main(_run: Any, _config: dict[str, Any], _log: Any) -> int:
        experiment, folder, checkpoint = prepared_run
        return train(experiment, folder, checkpoint, _run)

    if sacred_command:
        experiment.run(sacred_command)
        return 0
    folder = prepared_run[1]
    experiment.observers.append(FileStorageObserver(folder / "sacred", copy_sources=False))
    if config["mongo_url"] and hosts.leads():
        from sacred.observers import MongoObserver

        experiment.observers.append(MongoObserver(url=config["mongo_url"]))
    logger: Any = logging.getLogger("omg")
    logger.setLevel("DEBUG" if config["debug"] else "WARNING")
    experiment.logger = logger
    finished = experiment.run()
    if hosts.leads():
        print(folder)
    return int(finished.result or 0)


def train(experiment: Experiment, folder: Path, checkpoint: checkpoints.Checkpoint | None, _run: Any) -> int:
    """A whole run. Returns the exit status."""
    run, spec = experiment.settings, experiment.spec
    say(f"{run.name} on {run.env_config}: {spec.n_agents} agents, {device.describe()}, in {folder}")
    # Folder, resuming, devices and hosts are not part of the experiment: without them it can be repeated elsewhere.
    machines = dict.fromkeys(("devices", "coordinator", "hosts", "host"))
    config = experiment.config | {"run_dir": None, "resume": False} | machines
    resume_at = None if not run.resume else (checkpoint.t_env if checkpoint and goes_on(run, checkpoint) else -1)
    tracker = make_tracker(run.tracker if hosts.leads() else None, folder, config)
    with Interrupts() as stop, Logger(folder, run.use_tensorboard, _run, resume_at, run.all_seeds, tracker) as logger:
        if not (folder / "config.yaml").exists():
            write_text(folder / "config.yaml", yaml.safe_dump(config, sort_keys=False))
        trainer = Trainer(experiment.loop, run, config, folder, logger, checkpoint)
        stopped_by = trainer.run_safely(stop)
        if stopped_by is not None:
            hosts.part()
            home = run.run_dir or folder
            say(f"stopped at {trainer.counters.t_env:,} steps. To continue: omg train --resume --run_dir={home}")
            return 128 + stopped_by
        summary = trainer.summary()
    if not summary["updates"]:
        say(
            f"nothing was learned: the first update needs {experiment.loop.sampled} episodes, and the run ended after "
            f"{summary['episodes']}. Raise t_max or lower batch_size.",
            "yellow",
        )
    learning_curve(folder)
    if run.save_replay:
        draw_replay(experiment, hosts.fetch(trainer.state.learner.params), folder)
    # The summary marks the run as finished, so it comes last.
    write_json(folder / "summary.json", summary)
    hosts.part()
    show(summary)
    return 0


def draw_replay(experiment: Experiment, params: Any, folder: Path) -> None:
    """A GIF of the first seed, with inferred subgoals or beliefs if the agent has them."""
    params = params if experiment.settings.seeds == 1 else jax.tree.map(lambda x: x[0], params)
    key, path = jax.random.key(experiment.settings.seed), folder / "replay.gif"
    if not experiment.learner.focal:
        save_replay(record_team(experiment.env, experiment.mac, params, key, experiment.settings.name), path)
        return
    runner: Any = experiment.loop.runner
    vae = experiment.learner.artifacts.get("vae")
    group = runner.opponents[0].groups[-1]
    names = names_in_replay(experiment.settings.name, open_pool(experiment.config), group)
    save_replay(record_focal(experiment.env, experiment.mac, params, group, key, vae, names), path)
