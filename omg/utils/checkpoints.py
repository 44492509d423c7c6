"""Checkpoints: safetensors and JSON, written atomically and verified by checksum when they are read.

A checkpoint is a folder named after its environment steps: one `.safetensors` file per network, and `checkpoint.json`
with the counters, the configuration and the checksum of every file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from omg.utils.files import inside, make_folder, write_json
from omg.utils.logging import say
from omg.utils.settings import UserError

MANIFEST = "checkpoint.json"
INDEX = "index.json"
"""Lists the checkpoints that this program wrote into a folder: only these are ever removed."""


FORM: dict[str, tuple[type, bool]] = {
    "t_env": (int, True), "files": (dict, True), "config": (dict, False), "seeds": (list, False),
    "counters": (dict, False), "t_env_seeds": (list, False),
}  # fmt: skip
"""Entries of a manifest: their types, and whether they are always there."""


class Checkpoint(NamedTuple):
    """A folder whose files are complete and unaltered, and its manifest."""

    path: Path
    manifest: dict[str, Any]

    @property
    def t_env(self) -> int:
        return self.manifest["t_env"]

    def file(self, name: str) -> Path:
        """One of the files that the manifest lists."""
        if name not in self.manifest["files"]:
            raise UserError(f"{self.path} holds no {name}: it was saved by another algorithm.")
        return inside(self.path, name, "checkpoint file")


def save(folder: Path, t_env: int, files: dict[str, Any], manifest: dict[str, Any], keep: int) -> Path:
    """Writes `folder/<t_env>` through a temporary folder, then removes all but the newest `keep` of its own."""
    make_folder(folder)
    temporary = folder / f".writing-{t_env}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    checksums = {}
    for name, tree in files.items():
        path = temporary / f"{name}.safetensors"
        write_arrays(flatten(tree), path)
        checksums[path.name] = checksum(path)
    content = {**manifest, "t_env": t_env, "files": checksums}
    content["checksum"] = digest_of(content)
    path = temporary / MANIFEST
    path.write_text(json.dumps(content, indent=1))
    for written in temporary.iterdir():
        with written.open("rb") as file:
            os.fsync(file.fileno())
    final = folder / str(t_env)
    if final.is_symlink() or (final.exists() and not (final / MANIFEST).is_file()):
        raise UserError(f"cannot save {final}: something that is not a checkpoint has this name.")
    written_here = {*_index(folder), t_env}
    write_json(folder / INDEX, sorted(written_here))
    if final.exists():
        shutil.rmtree(final)
    temporary.rename(final)
    _prune(folder, written_here, keep)
    return final


def write_arrays(arrays: dict[str, np.ndarray], path: Path) -> None:
    """A `.safetensors` file. What the system refuses (a full disk) is an OSError."""
    try:
        save_file(arrays, path)
    except SafetensorError as error:
        raise OSError(errno.EIO, f"{error}", str(path)) from error


def set_apart(folder: Path, target: Path) -> Path | None:
    """Copies the newest checkpoint of a folder whose weights are finite; None: there is none, or it is there."""
    for step in reversed(steps_in(folder)):
        try:
            found = verify(folder / str(step))
        except UserError:
            continue  # a damaged one is passed over, as on resume
        if found.manifest.get("finite", True):
            if (target / str(step)).exists():
                return None
            temporary = target.with_name(f".{target.name}.writing")
            shutil.rmtree(temporary, ignore_errors=True)
            shutil.copytree(found.path, temporary / str(step))
            shutil.rmtree(target, ignore_errors=True)
            temporary.rename(target)
            return target / str(step)
    return None


def _prune(folder: Path, written_here: set[int], keep: int) -> None:
    """Removes old checkpoints: only those listed in the index, never through a link."""
    if folder.is_symlink():
        return
    own = [step for step in sorted(written_here) if (folder / str(step) / MANIFEST).is_file()]
    own = [step for step in own if not (folder / str(step)).is_symlink()]
    for step in own[: -max(keep, 1)]:
        shutil.rmtree(folder / str(step))
    write_json(folder / INDEX, own[-max(keep, 1) :])


def _index(folder: Path) -> list[int]:
    try:
        content = json.loads((folder / INDEX).read_text())
    except (OSError, ValueError):
        return []
    return [step for step in content if isinstance(step, int)] if isinstance(content, list) else []


def steps_in(folder: Path) -> list[int]:
    """The steps of the checkpoints in a folder, in ascending order."""
    if not folder.is_dir():
        return []
    listed = {str(step) for step in _index(folder)}
    return sorted(
        int(p.name)
        for p in folder.iterdir()
        if p.name.isdigit() and p.is_dir() and (p.name in listed or (p / MANIFEST).exists())
    )


def verify(path: Path) -> Checkpoint:
    """The checkpoint in a folder, or an error that says what is wrong with it."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        stored = manifest.pop("checksum")
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is not a complete checkpoint: its {MANIFEST} is missing or truncated.") from error
    if stored != digest_of(manifest):
        raise UserError(f"{path} was altered: its {MANIFEST} does not match its own checksum.")
    for key, (kind, needed) in FORM.items():
        if not isinstance(manifest.get(key), kind) and (needed or key in manifest):
            raise UserError(f"{path} is no checkpoint of this program: {key} in its {MANIFEST} is not {kind.__name__}.")
    if any(not isinstance(step, int) or step < 0 for step in [manifest["t_env"], *manifest.get("seeds", [])]):
        raise UserError(
            f"{path} is no checkpoint of this program: its {MANIFEST} counts with other than whole numbers."
        )
    for name, digest in manifest["files"].items():
        file = inside(path, name, "checkpoint file")
        if not file.is_file():
            raise UserError(f"{path} is not a complete checkpoint: {name} is missing.")
        if checksum(file) != digest:
            raise UserError(f"{path} is damaged: {name} was truncated or altered (its checksum differs).")
    return Checkpoint(path, manifest)


def find(path: Path, load_step: int = 0) -> Checkpoint:
    """The checkpoint in a run's folder, in its checkpoints folder, or in a checkpoint's own folder."""
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
    """The same, for a trained model (VAEs and goals are checkpoints, too)."""
    found = find(path, load_step)
    if not found.manifest.get("finite", True):
        say(f"the weights in {found.path} are not finite: learning had diverged.", "yellow")
    if "config" not in found.manifest or "seeds" not in found.manifest:
        raise UserError(f"{found.path} holds no model: it was not written by omg train.")
    return found


def newest_whole(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest complete checkpoint, and what is wrong with newer ones."""
    complaints: list[str] = []
    for step in reversed(steps_in(folder)):
        try:
            return verify(folder / str(step)), complaints
        except UserError as error:
            complaints.append(str(error))
    return None, complaints


def load(checkpoint: Checkpoint, name: str, like: Any) -> Any:
    """One network with the structure of `like`; another architecture is an error that names both shapes."""
    file = checkpoint.file(f"{name}.safetensors")
    return unflatten(load_file(file), like, f"{checkpoint.path.name}/{name}")


def flatten(tree: Any) -> dict[str, np.ndarray]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    # safetensors writes the memory of an array as it is: views and transposed arrays must be contiguous first.
    return {_name(path): np.asarray(leaf, order="C") for path, leaf in leaves}


def halved(arrays: dict[str, np.ndarray], what: str) -> dict[str, np.ndarray]:
    """The same arrays with all real numbers in half precision."""
    small = {name: x.astype(np.float16) if x.dtype == np.float32 else x for name, x in arrays.items()}
    if not all(np.isfinite(x).all() for x in small.values()):
        raise UserError(f"{what} has weights that half precision cannot hold: its training diverged.")
    return small


def unflatten(arrays: dict[str, np.ndarray], like: Any, what: str) -> Any:
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    wanted = {_name(path): leaf for path, leaf in leaves}
    for name, leaf in wanted.items():
        if name not in arrays:
            raise UserError(f"{what} has another architecture: it has no {name} {tuple(leaf.shape)}.")
        if arrays[name].shape != tuple(leaf.shape):
            raise UserError(
                f"{what} has another architecture: {name} is {arrays[name].shape} in the checkpoint "
                f"and {tuple(leaf.shape)} here."
            )
    for name in arrays:
        if name not in wanted:
            raise UserError(f"{what} has another architecture: {name} {arrays[name].shape} has no place here.")
    found = [arrays[name] for name in wanted]
    # What was stored in half precision is computed with in full precision.
    halves = np.dtype(np.float16)
    found = [x.astype(like.dtype) if x.dtype == halves else x for x, like in zip(found, wanted.values(), strict=True)]
    return jax.tree_util.tree_unflatten(structure, found)


def checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _name(path: tuple) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "value"


def digest_of(manifest: dict[str, Any]) -> str:
    """The checksum of a file's content, which is stored beside it."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
