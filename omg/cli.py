"""The command line: `omg train`, `evaluate`, `list`, `bench`, and Sacred's own commands. `main.py` is the same door."""

from __future__ import annotations

import copy
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from omg import config as configuration
from omg.config import Command
from omg.utils.logging import say
from omg.utils.settings import UserError, fill

USAGE = """\
OMG: opponent modelling in multi-agent reinforcement learning.

  omg train      --config=qmix --env-config=foraging --seed=3 --t_max=200000 with env_args.grid_size=10
  omg train      --resume --run_dir=DIR            go on with a run that was stopped
  omg evaluate   --checkpoint_path=DIR [--load_step=N] [--save_replay]
  omg pool       --env-config=foraging             train opponents and keep them; omg pool show describes them
  omg pretrain   --config=iql_omg --env-config=foraging   a VAE of the states they meet, for OMG
  omg train      --config=iql_omg --env-config=foraging   one agent among them; so do iql_am, iql_liam, ppo_omg, …
  omg train      --config=1vdn1iql_omg --multi_algs --env-config=foraging   who sits beside it
  omg evaluate   --checkpoint_path=DIR --pool=DIR  with every member of a pool, seen and unseen
  omg crossplay  DIR DIR nearest_food …            everyone with everyone (runs and rules)
  omg reproduce  foraging [--budget=demo|small|paper|STEPS] [--jobs=N]   the comparison with strangers, from nothing
  omg reproduce  battle [8m 3s_vs_5z …]            the same on maps of battle: win rates
  omg collect    --env-config=stag_hunt --pool=rules   others play, and what happens is kept
  omg pretrain   --config=hop_plus --env-config=stag_hunt --pool=rules   goals from it, for hop_plus
  omg adapt      --checkpoint_path=DIR [--pool=DIR] the same co-players again and again: returns and beliefs
  omg phases     hop_plus                          a list of phases: rules play, goals, ppo, hop_plus, adapt
  omg list                                         algorithms and worlds
  omg bench      --config=iql --env-config=foraging [--json]
  omg print_config --config=qmix                   what a run would use (Sacred's commands work too)

python main.py … is the same as omg train …. Settings are merged default → env-config → config → command line;
write them as --key=value, --flag (true), or after the word 'with' as key=value; dots reach inside: env_args.food=5.
"""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; returns the exit status. A mistake in the input is one sentence on stderr and status 2."""
    try:
        return dispatch(configuration.parse(sys.argv[1:] if arguments is None else arguments))
    except UserError as error:
        say(f"omg: {error}", "red")
        return 2
    except KeyboardInterrupt:
        say("stopped.")
        return 130


def entry() -> NoReturn:
    """The program. After Ctrl-C it ends at once: what is still being computed would otherwise be torn down noisily."""
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    if status == 130:
        os._exit(status)
    sys.exit(status)


def dispatch(command: Command) -> int:
    if command.help:
        print(USAGE + "\nSettings of every run, with their defaults:\n")
        print((configuration.CONFIG_DIR / "default.yaml").read_text().split("\n", 2)[2])
        return 0
    if command.get("evaluate"):
        return evaluate(command)
    handlers: dict[str, Callable[[Command], int]] = {
        "list": list_configurations,
        "evaluate": evaluate,
        "bench": bench,
        "pool": pool,
        "collect": collect,
        "pretrain": pretrain,
        "adapt": adapt,
        "crossplay": crossplay,
        "reproduce": reproduce,
        "phases": phases,
    }
    return handlers.get(command.verb, train)(command)


def list_configurations(_: Command) -> int:
    kinds = (("algorithms", "algs", "--config=…"), ("worlds", "envs", "--env-config=…"))
    for title, kind, option in (*kinds, ("lists of phases", "phases", "omg phases …")):
        print(f"{title} ({option})")
        for name, path in configuration.available(kind).items():
            print(f"  {name:<17}{configuration.one_line(path)}")
    return 0


def train(command: Command) -> int:
    from omg.parts import known_keys

    folder = None
    if command.get("resume"):
        folder = _run_to_resume(command)
        configuration.not_twice(command, "a resumed run keeps its own configuration")
        config = configuration.override(configuration.read_yaml(folder / "config.yaml"), command, known_keys())
    else:
        config = configuration.load(command, known_keys())
    if command.verb in configuration.SACRED_COMMANDS:
        return under_sacred(config, command.verb)

    from omg import run

    folder = folder or new_folder(config)
    prepared = run.prepare(config, folder)
    if config["mongo_url"] and importlib.util.find_spec("pymongo") is None:
        raise UserError("--mongo_url needs pymongo: pip install 'omg-marl[mongo]'.")
    folder.mkdir(parents=True, exist_ok=True)
    return under_sacred(prepared.parts.config, None, prepared)


def under_sacred(config: dict[str, Any], sacred_command: str | None, prepared: Any = None) -> int:
    """`my_main` as Sacred's main function; or one of Sacred's own commands on the configuration."""
    from sacred import SETTINGS, Experiment
    from sacred.observers import FileStorageObserver

    from omg.run import run

    SETTINGS["CAPTURE_MODE"] = "no"
    SETTINGS["CONFIG"]["READ_ONLY_CONFIG"] = False
    SETTINGS["HOST_INFO"]["INCLUDE_GPU_INFO"] = False
    experiment = Experiment("omg", save_git_info=False)
    experiment.add_config(copy.deepcopy(config))

    @experiment.main
    def my_main(_run: Any, _config: dict[str, Any], _log: Any) -> int:
        return run(_run, prepared, _log)

    if sacred_command:
        experiment.run(sacred_command)
        return 0
    folder = prepared.folder
    experiment.observers.append(FileStorageObserver(folder / "sacred", copy_sources=False))
    if config["mongo_url"]:
        from sacred.observers import MongoObserver

        experiment.observers.append(MongoObserver(url=config["mongo_url"]))
    logger: Any = logging.getLogger("omg")
    logger.setLevel("DEBUG" if config["debug"] else "WARNING")
    experiment.logger = logger
    finished = experiment.run()
    print(folder)
    return int(finished.result or 0)


def evaluate(command: Command) -> int:
    from omg import run
    from omg.loading import saved_model

    found, config = saved_model(command)
    folder = Path(config["run_dir"]) if config["run_dir"] else found.path.parent.parent / "evaluation" / found.path.name
    _check_writable(folder)
    if command.get("pool"):
        return evaluate_among_strangers(found, config, folder)
    status = run.evaluate(run.prepare(config, folder))
    print(folder)
    return status


def _loaded(command: Command) -> dict[str, Any]:
    """The configuration that a command describes, with what every run reads checked."""
    from omg.parts import RunSettings, known_keys

    config = configuration.load(command, known_keys())
    fill(RunSettings, config)
    return config


def adapt(command: Command) -> int:
    from omg.adapting import adapt as meet_again
    from omg.loading import saved_model
    from omg.utils import device

    found, config = saved_model(command)
    config["pool"] = command.get("pool")
    where = found.path.parent.parent / ("told" if config.get("told") else "adaptation") / found.path.name
    folder = Path(config["run_dir"]) if config["run_dir"] else where
    _check_writable(folder)
    device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    return _kept(folder, meet_again(found, config, folder))


def _kept(folder: Path, summary: dict[str, Any]) -> int:
    (folder / "summary.json").write_text(json.dumps(summary, indent=1))
    print(folder)
    return 0


def evaluate_among_strangers(found: Any, config: dict[str, Any], folder: Path) -> int:
    from omg.playing import among_strangers
    from omg.utils import device

    device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    return _kept(folder, among_strangers(found, config, folder))


def crossplay(command: Command) -> int:
    from omg.playing import crossplay as play
    from omg.utils import device

    config = _loaded(command)
    device.setup(config.get("use_cuda"), bool(config.get("compilation_cache")))
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    folder = Path(config["run_dir"] or f"{config['local_results_path']}/crossplay__{stamp}")
    _check_writable(folder)
    print(play(command.words, config, folder))
    return 0


def bench(command: Command) -> int:
    from omg.bench import bench as measure

    return measure(_loaded(command), as_json=command.json)


def pool(command: Command) -> int:
    from omg.pooling import make_pool, show_pool

    if command.words not in ([], ["show"]):
        raise UserError(f"omg pool makes a pool, omg pool show describes it; what is {' '.join(command.words)!r}?")
    if command.words:
        return show_pool(command)
    print(make_pool(command))
    return 0


def pretrain(command: Command) -> int:
    from omg.goal_learning import pretrain as learn_goals
    from omg.pretraining import pretrain as train_vae

    config = _loaded(command)
    print(learn_goals(config) if config.get("learned_goals") else train_vae(config))
    return 0


def collect(command: Command) -> int:
    from omg.goal_learning import collect as let_play

    print(let_play(_loaded(command)))
    return 0


def reproduce(command: Command) -> int:
    from omg.reproducing import parse_words
    from omg.reproducing import reproduce as carry_out

    parse_words(command.words)
    budget = str(command.get("budget", "paper"))
    jobs = command.get("jobs", 1)
    known = {"budget", "run_dir", "local_results_path", "jobs"}
    for key, _ in command.updates:
        if key not in known:
            raise UserError(f"reproduce takes --budget, --jobs and --run_dir, not --{key}.")
    if not isinstance(jobs, int) or jobs < 1:
        raise UserError(f"--jobs is how many methods train at once, 1 or more, not {jobs}.")
    results = Path(str(command.get("local_results_path", "results")))
    folder = Path(str(command.get("run_dir") or results / f"reproduce_{'_'.join(command.words)}_{budget}"))
    _check_writable(folder)
    status = carry_out(command.words, budget, folder, lambda words: dispatch(configuration.parse(words)), jobs)
    print(folder)
    return status


def phases(command: Command) -> int:
    from omg.phases import run_phases

    if len(command.words) != 1:
        raise UserError("phases takes the name of a list of phases, or a YAML file: omg phases hop_plus.")
    for key, _ in command.updates:
        if key not in ("run_dir", "local_results_path"):
            raise UserError(
                f"phases takes --run_dir; what a phase does stands in its YAML, so --{key} has no place here."
            )
    name = command.words[0]
    results = Path(str(command.get("local_results_path", "results")))
    folder = Path(str(command.get("run_dir") or results / f"phases_{Path(name).stem}"))
    _check_writable(folder)
    status = run_phases(name, folder, lambda words: dispatch(configuration.parse(words)))
    print(folder)
    return status


def new_folder(config: dict[str, Any]) -> Path:
    """Where a new run goes. Nothing is made yet; a folder that holds a run already is refused."""
    if config.get("run_dir"):
        folder = Path(str(config["run_dir"]))
        if (folder / "config.yaml").exists():
            raise UserError(f"{folder} already holds a run: add --resume to go on with it, or choose another folder.")
    else:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
        base = f"{config['name']}__{config['env']}__seed{config['seed']}__{stamp}"
        results = Path(str(config["local_results_path"]))
        folder, again = results / base, 1
        while folder.exists():
            again += 1
            folder = results / f"{base}-{again}"
    _check_writable(folder)
    return folder


def _check_writable(folder: Path) -> None:
    """Whether the folder could be made, without making it."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"cannot write results to {folder}: {existing} is not a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write results to {folder}: no permission to write in {existing}.")


def _run_to_resume(command: Command) -> Path:
    run_dir = command.get("run_dir")
    if not isinstance(run_dir, str):
        raise UserError("--resume needs to know which run: add --run_dir=DIR (a folder under results/).")
    folder = Path(run_dir)
    if not (folder / "config.yaml").is_file():
        raise UserError(f"there is no run to resume in {folder}: it has no config.yaml.")
    _check_writable(folder)
    return folder


if __name__ == "__main__":
    entry()
