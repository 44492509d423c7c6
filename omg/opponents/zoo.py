"""The zoo: pools that ship with the package, one per task of the benchmark, with the bounds of their scores.

`--pool=zoo:lbf_7x7` names one. `zoo.json` holds the version and the checksums of every task's manifest and bounds; the
manifest holds those of its members.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from omg.opponents.pool import MANIFEST, Pool
from omg.utils.checkpoints import checksum
from omg.utils.files import make_folder, write_json
from omg.utils.settings import UserError, choose

ROOT = Path(__file__).parents[1] / "zoo"
PREFIX = "zoo:"
CONTENTS, BOUNDS = "zoo.json", "bounds.json"
VERSION = 1


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
    task = name.removeprefix(PREFIX)
    files = choose(tasks(), task, "task in the zoo")
    for file, expected in files.items():
        path = ROOT / task / file
        if not path.is_file() or checksum(path) != expected:
            raise UserError(f"the zoo is damaged: {path} is missing or was altered. Install the package again.")
    return ROOT / task


def pack(source: Path, bounds: Path, task: str) -> int:
    """Puts a pool and the bounds of its scores into the zoo, with weights in half precision; returns the bytes."""
    pool, target = Pool.load(source), ROOT / task
    partners = json.loads(bounds.read_text())["partners"]
    if missing := sorted({*partners} - {m.name for m in pool.members}):
        raise UserError(f"{bounds} is of another pool than {source}, which has no {missing[0]}.")
    shutil.rmtree(target, ignore_errors=True)
    make_folder(target / "members")
    kept = Pool(target, pool.env, pool.env_args, [], pool.recipe)
    for member in pool.members:
        if member.file is None:
            kept.members.append(member)
            continue
        arrays = {name: x.astype(np.float16) for name, x in load_file(source / member.file).items()}
        if not all(np.isfinite(x).all() for x in arrays.values()):
            raise UserError(f"{member.name} has weights that half precision cannot hold.")
        save_file(arrays, target / member.file)
        kept.members.append(type(member)(**{**vars(member), "checksum": checksum(target / member.file)}))
    kept.save()
    (target / BOUNDS).write_bytes(bounds.read_bytes())
    known = tasks() | {task: {file: checksum(target / file) for file in (MANIFEST, BOUNDS)}}
    write_json(ROOT / CONTENTS, {"version": VERSION, "tasks": known})
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
