"""Runs stages in the order of their dependencies: one by one in this process, or several at once in processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, Protocol

from omg.utils.files import write_json
from omg.utils.logging import say

STATE = "workflow.json"


class Job(Protocol):
    """One command with a title, and the titles of the jobs before it."""

    @property
    def title(self) -> str: ...
    @property
    def after(self) -> tuple[str, ...]: ...
    @property
    def command(self) -> Any: ...
    def words(self) -> list[str]: ...


def run_jobs(jobs: Sequence[Any], at_once: int, folder: Path, state: dict[str, Any], run: Callable[[Any], int]) -> int:
    """Runs what is not done yet; `state` is what earlier calls did. Returns the first bad status, or 0."""
    lock = threading.Lock()

    def record(job: Any, done: bool) -> None:
        with lock:
            state[job.title] = {"words": job.words(), "done": done}
            write_json(folder / STATE, state)

    def is_done(job: Any) -> bool:
        return bool(state.get(job.title, {}).get("done"))

    if at_once == 1:
        for i, job in enumerate(jobs):
            if is_done(job) and job.command.verb != "compare":
                continue
            say(f"[{i + 1}/{len(jobs)}] {job.title}: omg {' '.join(job.words())}", "bold")
            record(job, False)
            status = run(job)
            if status:
                return status
            record(job, True)
        return 0
    return _at_once(jobs, at_once, folder, record, is_done, run)


def _at_once(jobs: Sequence[Any], at_once: int, folder: Path, record: Any, is_done: Any, run: Any) -> int:
    running: list[subprocess.Popen] = []
    stopping = threading.Event()

    def start(job: Any) -> int:
        if stopping.is_set():
            return 130
        record(job, False)
        status = run(job) if job.command.verb == "compare" else _in_process(job, folder, running, at_once)
        if not status:
            record(job, True)
        return status

    pending = [job for job in jobs if not is_done(job) or job.command.verb == "compare"]
    finished = {job.title for job in jobs if is_done(job)}
    futures: dict[Future, Any] = {}
    worst = 0
    with ThreadPoolExecutor(at_once) as executor, _sigterm_as_ctrl_c():
        try:
            while pending or futures:
                ready = [job for job in pending if set(job.after) <= finished] if not worst else []
                for job in ready[: at_once - len(futures)]:
                    pending.remove(job)
                    futures[executor.submit(start, job)] = job
                if not futures:
                    break
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    job, status = futures.pop(future), future.result()
                    worst = max(worst, status)
                    finished |= {job.title} if not status else set()
        except KeyboardInterrupt:
            # Running jobs save and end; nothing new begins.
            stopping.set()
            for process in running:
                process.send_signal(signal.SIGINT)
            raise
    return worst


def _in_process(job: Any, folder: Path, running: list[subprocess.Popen], at_once: int) -> int:
    log = folder / f"{job.title}.log"
    say(f"{job.title}: omg {' '.join(job.words())} (see {log})", "bold")
    # Processes that share a GPU allocate memory as they need it.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    with log.open("a") as file:
        command = [sys.executable, "-m", "omg", *job.words()]
        if job.command.verb == "pool":
            command.append(f"--jobs={at_once}")
        # In a session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )
        running.append(process)
        status = process.wait()
    if status:
        say(f"{job.title} ended with status {status}: see {log}.", "yellow")
    return status if status >= 0 else 128 - status


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
