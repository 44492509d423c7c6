"""One run on several devices: they share its seeds, or the parallel environments of a single seed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array

from omg.training import hosts
from omg.utils import device
from omg.utils.device import ENVS, SEEDS
from omg.utils.logging import say
from omg.utils.settings import UserError


def mesh_of(devices: int | str | None, seeds: int, envs: int) -> Mesh | None:
    """The devices over which the seeds of a run are spread, or with a single seed its parallel environments.

    Every device gets as many as any other one: of 8 devices, 6 seeds use 6. None: the first device alone. Several hosts
    use all of their devices.
    """
    there = jax.devices()
    if hosts.several():
        if seeds % len(there):
            raise UserError(f"{len(there)} devices of {jax.process_count()} hosts cannot share {seeds} seeds equally.")
        return Mesh(np.array(there), (SEEDS,))
    wanted = len(there) if devices == "all" else int(devices or 1)
    if wanted > len(there):
        raise UserError(f"devices is {wanted}, and there are {len(there)} here ({device.describe()}).")
    count = max(n for n in range(1, wanted + 1) if (seeds if seeds > 1 else envs) % n == 0)
    if count < wanted:
        spread = f"{seeds} seeds" if seeds > 1 else f"{envs} environments"
        say(f"{count} of {wanted} devices are used: {spread} cannot be shared equally by more.", "yellow")
    return None if count == 1 else Mesh(np.array(there[:count]), (SEEDS if seeds > 1 else ENVS,))


class Devices:
    """Where seeds are shared, every device runs the program of its own seeds, and none waits for another.

    A device with one seed runs the very program of a run with one seed: the results are the same, bit for bit. Where
    environments are shared, all devices learn the same from the episodes of all.
    """

    def __init__(self, mesh: Mesh | None, seeds: int):
        self.mesh = mesh
        self.share_seeds = mesh is not None and SEEDS in mesh.axis_names
        self.seeds_each = seeds // mesh.size if mesh is not None and self.share_seeds else seeds

    def first_seed(self) -> Array:
        """The place of the first seed of this device, in a shared program."""
        return jax.lax.axis_index(SEEDS) * self.seeds_each

    def shared(self, function: Callable, by_seed: int) -> Callable:
        """The function as every device runs it; its first `by_seed` arguments, and all results, have an axis of seeds.

        A device with a single seed has no such axis. Where environments are shared, all devices have the same results.
        """
        if self.mesh is None:
            return function
        if not self.share_seeds:
            return lambda *values, **named: jax.lax.with_sharding_constraint(function(*values, **named), self._placed)

        def on_device(*values: Any) -> Any:
            if self.seeds_each > 1:
                return function(*values)
            own = [jax.tree.map(lambda x: x[0], value) for value in values[:by_seed]]
            return jax.tree.map(lambda x: x[None], function(*own, *values[by_seed:]))

        def on_all(*values: Any) -> Any:
            each, same = PartitionSpec(SEEDS), PartitionSpec()
            places = tuple(each if i < by_seed else same for i in range(len(values)))
            run = jax.shard_map(on_device, mesh=self.mesh, in_specs=places, out_specs=each, check_vma=False)
            return run(*values)

        return on_all

    def everywhere(self, values: Any) -> Any:
        """Arrays that all hosts have alike, for a shared program."""
        return jax.device_get(values) if hosts.several() else values

    def place(self, state: Any) -> Any:
        """Every device has its own seeds, or all have the same."""
        if hosts.several():
            return jax.tree.map(self._part, state)
        return state if self.mesh is None else jax.device_put(state, self._placed)

    def _part(self, x: Any) -> Array:
        """This host's part of an array that all hosts have whole."""
        if isinstance(x, jax.Array) and not x.is_fully_addressable:
            return x
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(self._part(jax.random.key_data(x)))
        whole = np.asarray(x)
        return jax.make_array_from_callback(whole.shape, self._placed, lambda index: whole[index])

    @property
    def _placed(self) -> NamedSharding:
        assert self.mesh is not None
        return NamedSharding(self.mesh, PartitionSpec(SEEDS) if self.share_seeds else PartitionSpec())
