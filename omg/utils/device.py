"""The machine: which device computes, how much memory is free, where compiled programs are cached."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import numpy as np
import psutil
from jax.sharding import Mesh

from omg.utils.settings import UserError


def setup(use_cuda: bool | None, compilation_cache: bool) -> list[str]:
    """Sets JAX's global options before anything is computed. Returns notices for the user."""
    notices = []
    if use_cuda is False:
        jax.config.update("jax_platforms", "cpu")
    elif use_cuda and jax.default_backend() == "cpu":
        notices.append("use_cuda is set, but there is no GPU here: computing on the CPU.")
    if compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return notices


def mesh_of(devices: int | str | None, seeds: int, envs: int) -> Mesh | None:
    """The devices over which the seeds of a run are spread, or with a single seed its parallel environments.

    Every device gets as many as any other one: of 8 devices, 6 seeds use 6. None: the first device alone.
    """
    there = jax.devices()
    wanted = len(there) if devices == "all" else int(devices or 1)
    if wanted > len(there):
        raise UserError(f"devices is {wanted}, and there are {len(there)} here ({describe()}).")
    count = max(n for n in range(1, wanted + 1) if (seeds if seeds > 1 else envs) % n == 0)
    return None if count == 1 else Mesh(np.array(there[:count]), (SEEDS if seeds > 1 else ENVS,))


SEEDS, ENVS = "seeds", "envs"
"""The axis of a mesh: what is spread over its devices."""


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "omg-marl" / "xla"


def free_memory() -> int:
    """Free bytes on the device that computes."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)


def describe() -> str:
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind})"
