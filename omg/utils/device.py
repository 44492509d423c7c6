"""The machine: which device computes, how much memory is free, where compiled programs are kept."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import psutil


def setup(use_cuda: bool | None, compilation_cache: bool) -> list[str]:
    """Settles JAX's global settings before anything is computed. Returns what had to be mended."""
    notices = []
    if use_cuda is False:
        jax.config.update("jax_platforms", "cpu")
    elif use_cuda and jax.default_backend() == "cpu":
        notices.append("use_cuda was asked for, but there is no GPU here: computing on the CPU.")
    if compilation_cache:
        jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.5)
    return notices


def cache_folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "omg-marl" / "xla"


def free_memory() -> int:
    """Bytes that an array may still take, on the device that computes."""
    device = jax.devices()[0]
    if device.platform == "cpu":
        return psutil.virtual_memory().available
    stats = device.memory_stats() or {}
    return stats.get("bytes_limit", 0) - stats.get("bytes_in_use", 0)


def describe() -> str:
    device = jax.devices()[0]
    return f"{device.platform} ({device.device_kind})"


def few_launches() -> bool:
    """Whether starting a program costs more than its arithmetic, so that small ones are better done as one."""
    return jax.default_backend() != "cpu"
