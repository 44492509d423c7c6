"""One controller for frozen policies of several architectures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from omg.controllers.base import Controller
from omg.envs.multiagentenv import Spec, Timestep


class MixedPolicy(NamedTuple):
    """A member of one of several groups: which group, and for every group a policy (only that of its own is used)."""

    group: Int[Array, "*member"]
    policies: tuple[Any, ...]


class MixedMAC(Controller):
    """Lets every group's controller act, and takes the actions of the member's own group."""

    can_be_focal = False

    def __init__(self, spec: Spec, macs: Sequence[Controller]):
        self.spec = spec
        self.macs = tuple(macs)

    @staticmethod
    def stack(sizes: Sequence[int], policies: Sequence[Any]) -> MixedPolicy:
        """The members of all groups, one group after the other, from each group's stacked policies."""
        groups = np.repeat(np.arange(len(sizes)), sizes)
        places = np.concatenate([np.arange(size) for size in sizes])

        def of_group(g: int, stacked: Any) -> Any:
            return jax.tree.map(lambda x: jnp.asarray(x)[np.where(groups == g, places, 0)], stacked)

        return MixedPolicy(jnp.asarray(groups), tuple(of_group(g, p) for g, p in enumerate(policies)))

    def init_memory(self, params: MixedPolicy, batch: int, seats: int | None = None, prior: Any = None) -> Any:
        return tuple(mac.init_memory(p, batch, seats) for mac, p in zip(self.macs, params.policies, strict=True))

    def select_actions(
        self,
        params: MixedPolicy,
        seen: Timestep,
        memory: Any,
        t_env: Array,
        key: Array,
        test_mode: bool | Array,
        seats: Int[Array, "*batch seat"] | None = None,
        env_state: Any = None,
    ) -> tuple[Int[Array, "batch seat"], Any]:
        actions, memories = [], []
        for mac, policy, one in zip(self.macs, params.policies, memory, strict=True):
            taken, after = mac.select_actions(policy, seen, one, t_env, key, test_mode, seats)
            actions.append(taken)
            memories.append(after)
        return jnp.stack(actions)[params.group], tuple(memories)
