"""Runs stages in the order of their dependencies: one by one in this process, or several at once in processes."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from omg.utils import ray_engine
from omg.utils.children import environment_of_child
from omg.utils.files import said, write_json
from omg.utils.interrupts import raises
from omg.utils.logging import JobTable, say
from omg.utils.ray_engine import RayOptions
from omg.utils.settings import UserError

STATE = "workflow.json"
STOPPED = (130, 143)
"""The statuses of a job that Ctrl-C or SIGTERM ended."""


class Engine(NamedTuple):
    """How jobs run: so many at once in processes of this machine, or on a Ray cluster."""

    at_once: int = 1
    ray: RayOptions | None = None


class Job(Protocol):
    """One command with a title, and the titles of the jobs before it."""

    @property
    def title(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def command(self) -> Any: ...
    def words(self) -> list[str]: ...


def run_jobs(
    jobs: Sequence[Any], engine: Engine, folder: Path, state: dict[str, Any], run: Callable[[Any], int]
) -> int:
    """Runs what is not done yet; `state` is what earlier calls did. Returns the worst status, 0 if all is done.

    A job that fails stops the jobs that need it, not the others.
    """
    lock = threading.Lock()

    def record(job: Any, done: bool) -> None:
        with lock:
            state[job.title] = {"words": job.words(), "done": done}
            write_json(folder / STATE, state)

    def is_done(job: Any) -> bool:
        return bool(state.get(job.title, {}).get("done"))

    if engine.ray or engine.at_once > 1:
        return _at_once(jobs, engine, folder, record, is_done, run)
    worst, missing = 0, set[str]()
    for i, job in enumerate(jobs):
        if is_done(job) and job.command.verb != "compare":
            continue
        if missing & set(job.after):
            missing.add(job.title)
            continue
        say(f"[{i + 1}/{len(jobs)}] {job.title}: omg {' '.join(job.words())}", "bold")
        record(job, False)
        status = _status_of(run, job)
        if status in STOPPED:
            return status
        if status:
            missing.add(job.title)
            worst = max(worst, status)
        else:
            record(job, True)
    _report(missing)
    return worst


def _status_of(run: Callable[[Any], int], job: Any) -> int:
    """The status of a job in this process; what is wrong with one job is said, and the others go on."""
    try:
        return run(job)
    except UserError as error:
        say(f"omg: {job.title}: {error}", "red")
        return 2
    except OSError as error:
        say(f"omg: {job.title}: the system said: {said(error)}.", "red")
        return 1
    except Exception:
        # A bug in one job: it is shown, and the others go on.
        traceback.print_exc()
        return 1


def _report(missing: set[str]) -> None:
    if missing:
        say(f"not finished: {', '.join(sorted(missing))}.", "yellow")


def _at_once(jobs: Sequence[Any], engine: Engine, folder: Path, record: Any, is_done: Any, run: Any) -> int:
    running: list[subprocess.Popen] = []
    on_ray = ray_engine.Running()
    stopping = threading.Event()
    at_once = engine.at_once
    if engine.ray:
        ray_engine.connect(engine.ray)
    table = JobTable([job.title for job in jobs])

    def start(job: Any) -> int:
        if stopping.is_set():
            return 130
        record(job, False)
        table.update(job.title, "running")
        if job.command.verb == "compare":
            status = _status_of(run, job)
        elif ray_options := engine.ray:
            status = _status_of(lambda job: _on_ray(job, jobs, folder, on_ray, ray_options), job)
        else:
            status = _status_of(lambda job: _in_process(job, folder, running, at_once), job)
        if not status:
            record(job, True)
        table.update(job.title, "done" if not status else f"status {status}")
        return status

    pending = [job for job in jobs if not is_done(job) or job.command.verb == "compare"]
    finished = {job.title for job in jobs if is_done(job)}
    futures: dict[Future, Any] = {}
    worst, stopped = 0, False
    for title in finished:
        table.update(title, "done")
    with table, ThreadPoolExecutor(at_once) as executor, raises(signal.SIGTERM):
        try:
            while pending or futures:
                ready = [job for job in pending if set(job.after) <= finished] if not stopped else []
                for job in ready[: at_once - len(futures)]:
                    pending.remove(job)
                    futures[executor.submit(start, job)] = job
                if not futures:
                    break
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    job, status = futures.pop(future), future.result()
                    worst, stopped = max(worst, status), stopped or status in STOPPED
                    finished |= {job.title} if not status else set()
        except KeyboardInterrupt:
            # Running jobs save and end; nothing new begins.
            stopping.set()
            for process in running:
                process.send_signal(signal.SIGINT)
            on_ray.stop()
            raise
    _report({job.title for job in jobs} - finished)
    return worst


def _on_ray(job: Any, jobs: Sequence[Any], folder: Path, running: ray_engine.Running, options: RayOptions) -> int:
    log = folder / f"{job.title}.log"
    say(f"{job.title}: omg {' '.join(job.words())} (on Ray; see {log})", "bold")
    needs = [folder / other.title for other in jobs if other.title in job.after]
    needs += ray_engine.files_in(job.words())
    task = ray_engine.Task(job.words(), folder / job.title, needs, log, options)
    status = running.run(task)
    say(f"{job.title} ended with status {status} on {task.node or 'a node that was lost'}.", "yellow" if status else "")
    return status


def _in_process(job: Any, folder: Path, running: list[subprocess.Popen], at_once: int) -> int:
    log = folder / f"{job.title}.log"
    say(f"{job.title}: omg {' '.join(job.words())} (see {log})", "bold")
    with log.open("a") as file:
        command = [sys.executable, "-m", "omg", *job.words()]
        if job.command.verb == "pool":
            command.append(f"--jobs={at_once}")
        # In a session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment_of_child(),
            start_new_session=True,
        )  # fmt: skip
        running.append(process)
        status = process.wait()
    if status:
        say(f"{job.title} ended with status {status}: see {log}.", "yellow")
    return status if status >= 0 else 128 - status
