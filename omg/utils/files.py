"""Files that are read again: written atomically, and looked up only inside the folder they belong to."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path, PurePosixPath
from typing import Any

from omg.utils.settings import UserError


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all: a temporary file beside it is renamed over it."""
    make_folder(path.parent)
    temporary = path.with_name(f".{path.name}.writing")
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def write_json(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1))


def said(error: OSError) -> str:
    """What the system said, and of which file."""
    return f"{error.strerror or error}{f' ({error.filename})' if error.filename else ''}"


def check_name(name: Any, what: str) -> str:
    """A plain relative name: no absolute path, no `..`, nothing hidden."""
    text = str(name)
    parts = PurePosixPath(text.replace("\\", "/")).parts
    if not isinstance(name, str) or not parts or text.startswith("/") or "\0" in text or len(text) > 255:
        raise UserError(f"{what} {text[:80]!r} is not a plain file name.")
    if any(part in ("..", "/") or ":" in part or part.startswith(".") for part in parts):
        raise UserError(f"{what} {text[:80]!r} points outside its folder: it must be a plain relative name.")
    return text


def inside(folder: Path, name: Any, what: str) -> Path:
    """The file of that name in a folder. Links that lead out of the folder are refused."""
    path = folder / check_name(name, what)
    if not path.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{what} {name!r} is a link that leads out of {folder}: it is not read.")
    return path


def make_folder(folder: Path) -> Path:
    """Creates a folder, or says why it cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write results to {folder}: {error.strerror or error}.") from error
    return folder


def check_writable(folder: Path) -> Path:
    """Refuses a folder that could not be created. It is not left behind."""
    existing = folder
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise UserError(f"cannot write results to {folder}: {existing} is not a folder.")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise UserError(f"cannot write results to {folder}: no permission to write in {existing}.")
    if existing != folder:  # the file systems of the kernel are writable for root and take no folder
        try:
            # Under a name of its own: several runs may start at once below the same folder.
            with tempfile.TemporaryDirectory(dir=existing):
                pass
        except OSError as error:
            raise UserError(f"cannot write results to {folder}: {error.strerror or error}.") from error
    return folder
