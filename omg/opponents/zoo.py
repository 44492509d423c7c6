"""The zoo: pools that ship with the package, one per task of the benchmark, the bounds of their scores, trained agents.

`--pool=zoo:lbf_7x7` names a pool, `--checkpoint_path=zoo:lbf_7x7/base` an agent. `zoo.json` holds the version and the
checksums of every task's manifest, bounds and agents; the manifest holds those of its members.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from safetensors.numpy import load_file

from omg.opponents.pool import MANIFEST, Pool
from omg.utils import checkpoints
from omg.utils.files import make_folder, write_json
from omg.utils.settings import UserError, choose

ROOT = Path(__file__).parents[1] / "zoo"
PREFIX = "zoo:"
CONTENTS, BOUNDS, AGENTS = "zoo.json", "bounds.json", "agents"
ONLY_FOR_TRAINING = ("opt", "target", "replay", "mixer", "critic", "others")
CRITICISED = "vae.safetensors"
"""An agent with this file chooses subgoals in hindsight: its critic is asked for their values in evaluations."""
OF_THE_MACHINE = ("run_dir", "checkpoint_path", "vae_path", "goals_path", "mongo_url", "use_cuda")
VERSION = 1
LIMIT = 15_000_000
"""Bytes of the whole zoo, at most."""


def in_zoo(name: object) -> bool:
    return isinstance(name, str) and name.startswith(PREFIX)


def tasks() -> dict[str, dict[str, str]]:
    """Task → file → checksum."""
    path = ROOT / CONTENTS
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text())
        if content["version"] != VERSION:
            raise UserError(f"the zoo in {ROOT} has version {content['version']}, this program reads {VERSION}.")
        return dict(content["tasks"])
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is damaged: install the package again.") from error


def folder_of(name: str) -> Path:
    """The folder of `zoo:TASK`, whose files are those that shipped."""
    task, known = name.removeprefix(PREFIX), tasks()
    if not known:
        raise UserError("the zoo holds no task yet: omg pool or omg benchmark make partners.")
    files = choose(known, task, "task in the zoo")
    for file, expected in files.items():
        path = ROOT / task / file
        if not path.is_file() or checkpoints.checksum(path) != expected:
            raise UserError(f"the zoo is damaged: {path} is missing or was altered. Install the package again.")
    return ROOT / task


def agent_folder(name: str) -> Path:
    """The checkpoint of `zoo:TASK/METHOD`, an agent that was trained with the training partners of the task."""
    task, _, method = name.removeprefix(PREFIX).partition("/")
    folder = folder_of(task)
    return choose({known: folder / AGENTS / known for known in agents_of(task)}, method, "agent in the zoo")


def agents_of(task: str) -> list[str]:
    """The methods whose trained agents ship with a task."""
    return sorted({Path(file).parts[1] for file in tasks().get(task, {}) if file.startswith(f"{AGENTS}/")})


def pack(results: Path, task: str, methods: Sequence[str] = ()) -> int:
    """Puts what `omg benchmark` made for a task into the zoo; returns the bytes.

    Args:
        results: the task's folder: the pool, the bounds of its scores, and a run for every method.
        task: its name in the zoo.
        methods: the methods whose agents ship, each with its first seed.
    """
    source, bounds = results / "pool", results / BOUNDS
    pool, target = Pool.load(source), ROOT / task
    # What is missing is said before anything is replaced.
    agents = {method: checkpoints.find_model(results / method) for method in methods}
    if not bounds.is_file():
        raise UserError(f"there is no {bounds}: omg benchmark writes it when a task is finished.")
    partners = json.loads(bounds.read_text())["partners"]
    if missing := sorted({*partners} - {m.name for m in pool.members}):
        raise UserError(f"{bounds} is of another pool than {source}, which has no {missing[0]}.")
    shutil.rmtree(target, ignore_errors=True)
    make_folder(target / "members")
    files = [MANIFEST, BOUNDS, *(member.file for member in pool.members if member.file is not None)]
    for file in files:
        shutil.copyfile((results if file == BOUNDS else source) / file, target / file)
    shipped = [MANIFEST, BOUNDS]
    for method, found in agents.items():
        pack_agent(found, target / AGENTS / method, task)
        shipped.append(f"{AGENTS}/{method}/{checkpoints.MANIFEST}")
    known = tasks() | {task: {file: checkpoints.checksum(target / file) for file in shipped}}
    write_json(ROOT / CONTENTS, {"version": VERSION, "tasks": known})
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def pack_agent(found: checkpoints.Checkpoint, target: Path, task: str) -> None:
    """The networks of the first seed in half precision, without what only training needs."""
    files = {}
    keep = ("critic",) if CRITICISED in found.manifest["files"] else ()
    for file in found.manifest["files"]:
        name = file.removesuffix(".safetensors")
        if name not in ONLY_FOR_TRAINING or name in keep:
            arrays = load_file(found.file(file))
            first = {key: x[0] for key, x in arrays.items()} if len(found.manifest["seeds"]) > 1 else arrays
            files[name] = checkpoints.halved(first, f"{found.path}/{name}")
    known = found.manifest["config"]
    config = known | {key: None for key in OF_THE_MACHINE if key in known}
    config |= {"local_results_path": "results", "pool": f"{PREFIX}{task}", "seeds": 1}
    manifest = {"config": config, "seeds": found.manifest["seeds"][:1]}
    written = checkpoints.save(target.parent / f".{target.name}", found.t_env, files, manifest, keep=1)
    written.rename(target)
    shutil.rmtree(written.parent)
