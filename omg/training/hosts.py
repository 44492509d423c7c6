"""One run on several hosts (`jax.distributed`): each trains its share of the seeds, and the first one keeps the run's
folder. All call the same programs in the same order; what they decide between two calls is decided by the first."""

from __future__ import annotations

import functools
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from omg.utils.settings import UserError

LARGE = 2**26
"""Bytes from which on arrays are fetched seed by seed, because a device then holds what it sends and receives."""

_joined: list[bool] = []


def join(coordinator: Any, hosts: Any, host: Any) -> None:
    """Before anything is computed: waits until all hosts are there. Without a coordinator this host is alone."""
    if coordinator is None:
        if hosts is not None or host is not None:
            raise UserError("--hosts and --host need the first host's address: --coordinator=ADDRESS:PORT.")
        return
    if coordinator == "auto":
        known: dict[str, Any] = {}
    elif isinstance(hosts, int) and isinstance(host, int) and 0 <= host < hosts and ":" in str(coordinator):
        known = {"coordinator_address": str(coordinator), "num_processes": hosts, "process_id": host}
        known["cluster_detection_method"] = "deactivate"  # else Slurm's numbers would replace some of these
    else:
        raise UserError("several hosts are given as --coordinator=ADDRESS:PORT --hosts=N --host=I (0 to N-1), or auto.")
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # while it waits, no Python code could be called
    try:
        jax.distributed.initialize(**known)
    except (RuntimeError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(f"the hosts did not find each other ({problem}). Is --coordinator right?") from error
    finally:
        signal.signal(signal.SIGINT, before)
    _joined.append(True)


def check(coordinator: str | None, devices: Any) -> None:
    """Refuses hosts that did not join (they are joined before settings are read), and devices beside hosts."""
    if coordinator and (devices is not None or not _joined):
        raise UserError(
            "several hosts train with all of their devices: omg train --coordinator=… on the command line, without "
            "--devices."
        )


def several() -> bool:
    # Only a host that has joined others asks JAX: the question chooses the device that computes.
    return bool(_joined) and jax.process_count() > 1


def share(seeds: int) -> int:
    """How many of the seeds this host trains."""
    return seeds // jax.process_count() if several() else seeds


def leads() -> bool:
    """Whether this is the host that keeps the run's folder."""
    return not several() or jax.process_index() == 0


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="omg-host-")


def own_folder(folder: Path) -> Path:
    """The run's folder on the first host; on the others a temporary one, which is not read."""
    return folder if leads() else Path(_scratch().name)


def part() -> None:
    """At the end of a run: no host leaves while another one still needs it."""
    if several():
        multihost_utils.sync_global_devices("the end of the run")
    if not leads():
        _scratch().cleanup()


@contextmanager
def all_or_none() -> Iterator[None]:
    """What fails on one host ends the run on all. The block must not exchange anything with other hosts."""
    problem: Exception | None = None
    try:
        yield
    except (UserError, OSError) as error:
        if not several():
            raise
        problem = error
    if largest(problem is not None):
        raise problem or UserError("another host could not go on: its own output says why.")


def fetch(tree: Any) -> Any:
    """Arrays with the seeds of all hosts, on every host."""
    return jax.tree.map(_whole, tree) if several() else jax.device_get(tree)


def _whole(x: Any) -> np.ndarray:
    if not isinstance(x, jax.Array) or x.is_fully_addressable:
        return np.asarray(x)
    rows = [x] if x.nbytes < LARGE else [x[i : i + 1] for i in range(len(x))]
    return np.concatenate([multihost_utils.process_allgather(row, tiled=True) for row in rows])


def of_first(value: int) -> int:
    """The number that the first host has."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if several() else value


def largest(value: int) -> int:
    """The largest number that a host has."""
    return int(np.max(multihost_utils.process_allgather(np.int32(value)))) if several() else value
