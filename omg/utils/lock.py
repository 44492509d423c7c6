"""One process at a time writes into a folder. The system releases the lock when its owner ends, however it ends."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from omg.utils.files import make_folder
from omg.utils.logging import say
from omg.utils.settings import UserError

FILE = ".lock"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the lock of a folder, or says who does. What the file says of an owner that has ended does not count."""
    path = make_folder(folder) / FILE
    try:
        file = path.open("a+")
    except OSError as error:
        raise UserError(f"cannot write results to {folder}: {error.strerror or error}.") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise UserError(f"{folder} is in use by {_owner(path)}: wait, or choose another folder.") from error
        except OSError as error:
            say(f"{folder} cannot be locked ({error.strerror}): nothing keeps another process out of it.", "yellow")
            yield
            return
        file.seek(0)
        file.truncate()
        file.write(json.dumps({"host": socket.gethostname(), "process": os.getpid()}))
        file.flush()
        yield


def _owner(path: Path) -> str:
    try:
        owner = json.loads(path.read_text())
        return f"process {int(owner['process'])} on {str(owner['host'])[:80]}"
    except (OSError, ValueError, TypeError, KeyError):
        return "another process"
