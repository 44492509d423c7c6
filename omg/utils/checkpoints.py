"""Checkpoints: safetensors and JSON, written whole or not at all, checked before they are believed.

A checkpoint is a folder named after its steps: one `.safetensors` file per part, and `checkpoint.json` with the
counters, the configuration and every file's checksum.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors.numpy import load_file, save_file

from omg.utils.settings import UserError

MANIFEST = "checkpoint.json"


class Checkpoint(NamedTuple):
    """A folder whose files are all there and unaltered, and what its manifest says."""

    path: Path
    manifest: dict[str, Any]

    @property
    def t_env(self) -> int:
        return self.manifest["t_env"]


def save(folder: Path, t_env: int, parts: dict[str, Any], manifest: dict[str, Any], keep: int) -> Path:
    """Writes `folder/<t_env>` by way of a temporary folder, then removes all but the newest `keep`."""
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".writing-{t_env}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    files = {}
    for name, tree in parts.items():
        path = temporary / f"{name}.safetensors"
        save_file(flatten(tree), path)
        files[path.name] = checksum(path)
    content = {**manifest, "t_env": t_env, "files": files}
    content["checksum"] = _digest(content)
    path = temporary / MANIFEST
    path.write_text(json.dumps(content, indent=1))
    for written in temporary.iterdir():
        with written.open("rb") as file:
            os.fsync(file.fileno())
    final = folder / str(t_env)
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    for old in steps_in(folder)[: -max(keep, 1)]:
        shutil.rmtree(folder / str(old))
    return final


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, rising."""
    if not folder.is_dir():
        return []
    return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit() and p.is_dir())


def verify(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or an error that says what is wrong with it."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        stored = manifest.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(f"{path} is not a whole checkpoint: its {MANIFEST} is missing or cut off.") from error
    if stored != _digest(manifest):
        raise UserError(f"{path} was altered: its {MANIFEST} does not match its own checksum.")
    for name, digest in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise UserError(f"{path} is not a whole checkpoint: {name} is missing.")
        if checksum(file) != digest:
            raise UserError(f"{path} is damaged: {name} was cut off or altered (its checksum differs).")
    return Checkpoint(path, manifest)


def find(path: Path, load_step: int = 0) -> Checkpoint:
    """The checkpoint meant by a run's folder, its checkpoints folder, or a checkpoint's own."""
    if not path.exists():
        raise UserError(f"no checkpoint at {path}: there is no such folder.")
    if (path / MANIFEST).exists():
        return verify(path)
    folder = path / "checkpoints" if (path / "checkpoints").is_dir() else path
    steps = steps_in(folder)
    if not steps:
        if path.name.isdigit():
            return verify(path)
        raise UserError(f"no checkpoint at {path}: a run keeps its checkpoints in <run>/checkpoints/<steps>.")
    step = min(steps, key=lambda s: abs(s - load_step)) if load_step else steps[-1]
    return verify(folder / str(step))


def find_model(path: Path, load_step: int = 0) -> Checkpoint:
    """The same, where a model is wanted and not something else that was saved."""
    found = find(path, load_step)
    if "config" not in found.manifest or "seeds" not in found.manifest:
        raise UserError(f"{found.path} holds no model: it was not written by omg train.")
    return found


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and what was wrong with newer ones."""
    complaints: list[str] = []
    for step in reversed(steps_in(folder)):
        try:
            return verify(folder / str(step)), complaints
        except UserError as error:
            complaints.append(str(error))
    return None, complaints


def load_part(checkpoint: Checkpoint, name: str, like: Any) -> Any:
    """One part with the structure of `like`; another architecture is an error that names both shapes."""
    file = f"{name}.safetensors"
    if file not in checkpoint.manifest["files"]:
        raise UserError(f"{checkpoint.path} holds no {name}: it was saved by another algorithm.")
    return unflatten(load_file(checkpoint.path / file), like, f"{checkpoint.path.name}/{name}")


def flatten(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    # safetensors writes memory as it lies: a view or a transposed array has to be laid out first.
    return {_name(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def unflatten(arrays: dict[str, np.ndarray], like: Any, what: str) -> Any:
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {_name(path): leaf for path, leaf in leaves}
    for name, leaf in wanted.items():
        if name not in arrays:
            raise UserError(f"{what} is of another architecture: it has no {name} {tuple(leaf.shape)}.")
        if arrays[name].shape != tuple(leaf.shape):
            raise UserError(
                f"{what} is of another architecture: {name} is {arrays[name].shape} in the checkpoint "
                f"and {tuple(leaf.shape)} here."
            )
    for name in arrays:
        if name not in wanted:
            raise UserError(f"{what} is of another architecture: {name} {arrays[name].shape} has no place here.")
    return jax.tree_util.tree_unflatten(structure, [arrays[name] for name in wanted])


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
