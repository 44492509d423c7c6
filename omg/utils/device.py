"""The machine: which device computes, how much memory is free, where compiled programs are cached."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import psutil


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


def separate() -> bool:
    """Whether every device has a memory of its own."""
    return jax.devices()[0].platform != "cpu"


def describe() -> str:
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind})"
