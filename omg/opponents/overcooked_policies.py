"""Scripted cooks for Overcooked (JaxMARL's): each has a role, and walks the shortest way to what it needs next."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from omg.envs.multiagentenv import Spec
from omg.opponents.grid_policies import random_action

STAY, INTERACT = 4, 5
FULL = 3
"""Onions in a pot that cooks."""
CONFUSION = 0.05
"""How often a cook takes a random step, so that two cooks do not block each other for ever."""
FAR = 1e3

Cells = Bool[Array, "row column"]


class Kitchen(NamedTuple):
    """An observation, layer by layer."""

    me: Cells
    other: Cells
    facing: Bool[Array, " direction"]
    """Up, down, right, left: also the order of the moves."""
    counters: Cells
    goals: Cells
    onion_piles: Cells
    plate_piles: Cells
    open_pots: Cells
    """Pots that take another onion."""
    full_pots: Cells
    """Pots that cook or are ready."""
    ready: Cells
    plates: Cells
    onions: Cells
    soups: Cells

    @property
    def free(self) -> Cells:
        """Cells to walk on."""
        return ~(self.counters | self.goals | self.onion_piles | self.plate_piles | self.open_pots | self.full_pots
                 | self.loose(self.plates | self.onions | self.soups))  # fmt: skip

    def loose(self, items: Cells) -> Cells:
        """Items that no cook holds."""
        return items & ~self.me & ~self.other


def _kitchen(spec: Spec, obs: Float[Array, " obs"]) -> Kitchen:
    x = obs.reshape(spec.obs_layout[0][1])
    on = x > 0
    pots, soup = on[..., 10], on[..., 21]
    busy = pots & (on[..., 20] | soup)
    # A pot shows its onions until it is full; then its soup.
    is_open = pots & ~busy & (x[..., 16] < FULL) & ~on[..., 18]
    return Kitchen(
        me=on[..., 0],
        other=on[..., 1],
        facing=on[..., 2:6].any((0, 1)),
        counters=on[..., 11],
        goals=on[..., 15],
        onion_piles=on[..., 12],
        plate_piles=on[..., 14],
        open_pots=is_open,
        full_pots=pots & ~is_open,
        ready=pots & soup,
        plates=on[..., 22],
        onions=on[..., 23],
        soups=soup & ~pots,
    )


def _neighbours(x: Array) -> Float[Array, "direction row column"]:
    """The value in the cell above, below, to the right and to the left; `FAR` outside."""
    padded = jnp.pad(x, 1, constant_values=FAR)
    return jnp.stack([padded[:-2, 1:-1], padded[2:, 1:-1], padded[1:-1, 2:], padded[1:-1, :-2]])


def _beside(cells: Cells) -> Bool[Array, "direction row column"]:
    """Whether one of these cells is above, below, to the right or to the left."""
    return _neighbours(jnp.where(cells, 0.0, FAR)) == 0


def _distances(start: Cells, free: Cells) -> Float[Array, "row column"]:
    """Steps from every free cell to the nearest start; `FAR` if there is no way."""
    first = jnp.where(start & free, 0.0, FAR)

    def spread(_: Array, far: Array) -> Array:
        return jnp.where(free, jnp.minimum(far, 1 + _neighbours(far).min(0)), FAR)

    return jnp.minimum(jax.lax.fori_loop(0, first.size // 2, spread, first), FAR)


def _go_to(k: Kitchen, targets: Cells, key: Array) -> Array:
    """A step on the way to a cell beside one of the targets; there, turn to it and interact."""
    k_step, k_confused, k_random = jax.random.split(key, 3)
    free = k.free & ~k.other
    beside = _beside(targets)
    far = _distances(beside.any(0), free)
    here = k.me & beside
    at_target = here.any((1, 2))
    turn = jnp.where(at_target, 1.0, 0.0).argmax()
    reach = jnp.where((at_target & k.facing).any(), INTERACT, turn)
    around = jnp.where(k.me, _neighbours(far), 0.0).sum((1, 2)) + 0.1 * jax.random.uniform(k_step, (4,))
    step = jnp.where(around.min() < FAR, around.argmin(), STAY)
    # No way: the other cook stands in it.
    lost = (around.min() >= FAR) | (jax.random.uniform(k_confused) < CONFUSION)
    step = jnp.where(lost, jax.random.randint(k_random, (), 0, 4), step)
    return jnp.where(at_target.any(), reach, step)


def cook(wants_onions: Callable[[Kitchen], Array | bool], wants_plates: Callable[[Kitchen], Array | bool]):
    """A cook fetches onions if it wants to, else plates if it wants to, and brings what it holds where it belongs.

    What it cannot bring there itself it puts on a counter that the other cook can reach. With nothing to do it walks
    about, so as not to stand in the way.
    """

    def of(spec: Spec):
        def policy(obs: Array, avail_actions: Array, seat: Array, key: Array) -> Array:
            k = _kitchen(spec, obs)
            mine = _distances(k.me, k.free) < FAR
            theirs = (_distances(k.other, k.free) < FAR) & ~mine
            within_reach = _beside(mine).any(0)

            def reachable(targets: Cells) -> Cells:
                return targets & within_reach

            passes_on = ~reachable(k.open_pots | k.full_pots).any()
            shared = k.counters & within_reach & _beside(theirs).any(0)

            def or_pass_on(targets: Cells) -> Cells:
                return jnp.where(passes_on, shared, reachable(targets))

            def source(wanted: Array | bool, piles: Cells, items: Cells, enough: int) -> Cells:
                """Where to fetch an item; a cook that passes it on leaves room on the counter for other items."""
                found = reachable(jnp.where(passes_on, piles, piles | k.loose(items)))
                return found & wanted & ~(passes_on & (k.loose(items).sum() >= enough))

            onions = source(wants_onions(k), k.onion_piles, k.onions, 2)
            plates = source(wants_plates(k), k.plate_piles, k.plates, 1)
            targets = jnp.where(onions.any(), onions, plates)
            holds_plate = (k.plates & k.me).any()
            for items, places in ((k.onions, or_pass_on(k.open_pots)), (k.plates, or_pass_on(k.full_pots)),
                                  (k.soups, reachable(k.goals))):  # fmt: skip
                targets = jnp.where((items & k.me).any(), places, targets)
            k_go, k_idle = jax.random.split(key)
            action = _go_to(k, targets, k_go)
            # Beside a pot that still cooks, a plate waits.
            action = jnp.where(holds_plate & (action == INTERACT) & ~k.ready.any() & ~passes_on, STAY, action)
            return jnp.where(targets.any(), action, jax.random.randint(k_idle, (), 0, STAY + 1))

        return policy

    return of


def static(spec: Spec):
    """Never moves."""
    return lambda obs, avail_actions, seat, key: jnp.int32(STAY)


def _needs_onions(k: Kitchen) -> Array:
    return k.open_pots.any()


OVERCOOKED: dict[str, Callable] = {
    "random": lambda spec: random_action,
    "static": static,
    "onion": cook(_needs_onions, lambda k: False),
    "plate": cook(lambda k: False, lambda k: True),
    "independent": cook(_needs_onions, lambda k: True),
    "plate_first": cook(lambda k: ~k.full_pots.any(), lambda k: True),
}
