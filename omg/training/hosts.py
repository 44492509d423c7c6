"""One run on several hosts (`jax.distributed`): each trains its share of the seeds, and the first one keeps the run's
folder. All call the same programs in the same order; what they decide between two calls is decided by the first."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from omg.utils.settings import UserError


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
    else:
        raise UserError("several hosts are given as --coordinator=ADDRESS:PORT --hosts=N --host=I (0 to N-1), or auto.")
    try:
        jax.distributed.initialize(**known)
    except (RuntimeError, ValueError) as error:
        problem = str(error).splitlines()[0]
        raise UserError(f"the hosts did not find each other ({problem}). Is --coordinator right?") from error


def several() -> bool:
    return jax.process_count() > 1


def leads() -> bool:
    """Whether this is the host that keeps the run's folder."""
    return jax.process_index() == 0


@functools.cache
def _scratch() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="omg-host-")


def own_folder(folder: Path) -> Path:
    """The run's folder on the first host; on the others a temporary one, which nobody reads."""
    return folder if leads() else Path(_scratch().name)


def fetch(tree: Any) -> Any:
    """Arrays with the seeds of all hosts, on every host."""
    if not several():
        return jax.device_get(tree)

    def whole(x: Any) -> Any:
        local = not isinstance(x, jax.Array) or x.is_fully_addressable
        return np.asarray(x) if local else multihost_utils.process_allgather(x, tiled=True)

    return jax.tree.map(whole, tree)


def of_first(value: int) -> int:
    """The number that the first host has."""
    return int(multihost_utils.broadcast_one_to_all(np.int32(value))) if several() else value


def largest(value: int) -> int:
    """The largest number that a host has."""
    return int(np.max(multihost_utils.process_allgather(np.int32(value)))) if several() else value
