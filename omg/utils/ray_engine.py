"""Jobs on a Ray cluster: each is a command in a process of its own on some node.

A job whose worker or node is lost is scheduled again; since commands go on where they were stopped, it resumes from its
last checkpoint if the nodes share the folder. Where they do not, what a job needs is sent to its node, and its results
are fetched back.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omg.utils.children import environment_of_child
from omg.utils.logging import say
from omg.utils.settings import UserError

ROOT = Path(__file__).parents[2]
NEEDS_FILES = -1
"""The status of a job that was not started: its node does not see the folder."""


class RayOptions(NamedTuple):
    address: str | None
    """None: a cluster of this machine alone."""
    gpus: float


PATHS = ("import", "pool", "checkpoint_path", "vae_path", "goals_path", "trajectories")
"""Settings whose values are files or folders."""
LONGEST = 250
"""Characters of a path; longer values are lists."""


class Outcome(NamedTuple):
    status: int
    node: str
    results: bytes | None
    """A tar file with the results, if the node does not share the folder."""


def connect(options: RayOptions) -> None:
    """Joins the cluster, once."""
    if importlib.util.find_spec("ray") is None:
        raise UserError("--engine=ray needs Ray: pip install 'omg-marl[ray]'.")
    import ray

    if ray.is_initialized():
        return
    try:
        ray.init(
            address=options.address or "local",
            log_to_driver=False,
            logging_level=logging.ERROR,
            include_dashboard=False,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"there is no Ray cluster at {options.address or 'this machine'}: {reason}") from error
    there = ray.cluster_resources().get("GPU", 0)
    if options.gpus > there:
        raise UserError(f"gpus_per_run is {options.gpus:g}, and the cluster has {there:g} GPUs.")
    if there and not options.gpus:
        say(f"the cluster has {there:g} GPUs, and runs use none: add --gpus_per_run=0.25, say.", "yellow")


class Task:
    """One job on the cluster."""

    def __init__(self, words: Sequence[str], home: Path, needs: Sequence[Path], log: Path, options: RayOptions):
        self.words, self.home, self.needs, self.log, self.options = list(words), home, list(needs), log, options
        self.reference: Any = None
        self.node = ""
        self.stopped = False

    def run(self) -> int:
        """Waits for the job; returns its status."""
        mark = self.log.parent / f".shared-{uuid.uuid4().hex}"
        mark.touch()
        try:
            outcome = self._submit(mark, None)
            if outcome.status == NEEDS_FILES:
                for path in (self.home, self.log, *self.needs):
                    relative_to(path, Path.cwd())  # else the results could not be fetched back
                outcome = self._submit(mark, packed([*self.needs, self.home]))
        finally:
            mark.unlink(missing_ok=True)
        self.node = outcome.node
        if outcome.results is not None:
            unpack(outcome.results)
        return outcome.status

    def _submit(self, mark: Path, files: bytes | None) -> Outcome:
        import ray

        remote = ray.remote(_on_node).options(
            num_cpus=1, num_gpus=self.options.gpus, max_retries=-1, name=self.home.name or "job"
        )
        environment = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)}
        self.reference = remote.remote(self.words, str(Path.cwd()), str(mark.resolve()), str(self.home), str(self.log),
                                       files, environment)  # fmt: skip
        if self.stopped:
            ray.cancel(self.reference, force=False)
        try:
            return Outcome(*ray.get(self.reference))
        except ray.exceptions.RayError as error:
            with self.log.open("a") as file:
                file.write(f"{error}\n")
            cancelled = isinstance(error, ray.exceptions.TaskCancelledError) or "KeyboardInterrupt" in str(error)
            return Outcome(130 if cancelled else 1, "", None)

    def stop(self) -> None:
        """The job saves and ends."""
        import ray

        self.stopped = True
        if self.reference is not None:
            ray.cancel(self.reference, force=False)


def _on_node(
    words: list[str], here: str, mark: str, home: str, log: str, files: bytes | None, environment: dict[str, str]
) -> tuple[int, str, bytes | None]:
    """Runs on a node. Paths are those of the machine that asked, relative to the folder it was called in."""
    shared = Path(mark).exists()
    node = os.uname().nodename
    if not shared and files is None:
        return NEEDS_FILES, node, None
    folder = Path(here)
    folder.mkdir(parents=True, exist_ok=True)
    if files is not None:
        unpack(files, folder)
    path = folder / log
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "omg", *words], cwd=folder, stdout=file, stderr=subprocess.STDOUT,
            env=environment_of_child() | environment,
        )  # fmt: skip
        status = None
        try:
            while status is None:
                # In short waits: Ray's request to stop is seen between them.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = process.wait(0.5)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            process.wait()
            status = 130
    if status < 0:
        status = 128 - status
    return status, node, None if shared else packed([folder / home, path], folder)


def packed(paths: Sequence[Path], root: Path | None = None) -> bytes:
    """A tar file of these folders, with names relative to the current folder (or `root`)."""
    root = (root or Path.cwd()).resolve()
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for path in paths:
            if path.exists():
                tar.add(path.resolve(), arcname=relative_to(path, root))
    return data.getvalue()


def files_in(words: Sequence[str]) -> list[Path]:
    """Files and folders in or below the current folder that a command line names, and modules that it imports."""
    found = []
    for word, before in zip(words, ["", *words], strict=False):
        key, _, value = word.partition("=") if "=" in word else (before, "", word)
        key = key.lstrip("-")
        if key in ("run_dir", "local_results_path") or len(value) > LONGEST:
            continue
        module = value.removesuffix(".py").replace(".", "/")
        for path in [Path(f"{module}.py"), Path(module)] if key == "import" else [Path(value)]:
            # Elsewhere a plain word is a name: of an environment, an algorithm, a task.
            named = key in PATHS or "/" in value or path.suffix
            if named and path.exists() and path.resolve().is_relative_to(Path.cwd()):
                found.append(path)
    return found


def relative_to(path: Path, root: Path) -> str:
    if not path.resolve().is_relative_to(root.resolve()):
        raise UserError(f"{path} is not inside {root}: nodes that do not share it cannot be sent it.")
    return str(path.resolve().relative_to(root.resolve()))


def unpack(data: bytes, root: Path | None = None) -> None:
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as tar:
        tar.extractall(root or Path.cwd(), filter="data")


class Running:
    """The tasks that run now, so that Ctrl-C can reach them."""

    def __init__(self) -> None:
        self.tasks: set[Task] = set()
        self.lock = threading.Lock()

    def run(self, task: Task) -> int:
        with self.lock:
            self.tasks.add(task)
        try:
            return task.run()
        finally:
            with self.lock:
                self.tasks.discard(task)

    def stop(self) -> None:
        with self.lock:
            for task in self.tasks:
                task.stop()
