"""Battle: SMAC's maps and rules as a pure function. Agents command one side's units, the other follows a written rule.

A step is eight game loops. What agents see, may do and earn is laid out as in SMAC, entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_batching import custom_vmap
from jaxtyping import Array, Float, Int

from omg.envs.battle.fight import Fight, Orders, Rules
from omg.envs.battle.maps import SIZE, load_map
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Storage, Timestep
from omg.utils.settings import UserError

NOOP, STOP, NORTH, SOUTH, EAST, WEST, FIRST_TARGET = range(7)
LOOPS = 8
SIGHT, SHOOT, MOVE = 9.0, 6.0, 2.0
WIN, KILL, LARGEST_RETURN = 200.0, 10.0, 20.0
HALF = Storage("float16")


@dataclass(frozen=True)
class BattleSettings:
    map_name: str = "3m"
    map_file: str | None = None
    episode_limit: int | None = None
    reward_sparse: bool = False
    start_noise: float = 0.15

    def __post_init__(self) -> None:
        if self.episode_limit is not None and self.episode_limit < 1:
            raise UserError(f"env_args.episode_limit is {self.episode_limit}; it must be 1 or more.")
        if not 0 <= self.start_noise <= 2:
            raise UserError(f"env_args.start_noise is {self.start_noise}; it goes from 0 to 2 cells.")


class BattleState(NamedTuple):
    """One world: its units, and what the agents did last."""

    fight: Fight
    last_actions: Int[Array, " agent"]


class Battle(MultiAgentEnv):
    """`reset` and `step` are those of one world; under `vmap` they become the same code with the worlds' axis last."""

    Settings = BattleSettings

    def __init__(self, settings: BattleSettings):
        self.settings = settings
        self.map = load_map(settings.map_name, settings.map_file)
        self.rules = Rules(self.map)
        start = jnp.concatenate([self.map.allies.start, self.map.enemies.start])
        if not self.rules.walkable(start[:, :1], start[:, 1:]).all():
            raise UserError(f"map {self.map.name}: somebody starts where there is no ground; see its rooms.")
        n, m, types = len(self.map.allies), len(self.map.enemies), len(self.map.type_names)
        ally_shield, enemy_shield = int(self.map.allies.shielded), int(self.map.enemies.shielded)
        enemy, ally = 5 + enemy_shield + types, 5 + ally_shield + types
        obs_size = 4 + m * enemy + (n - 1) * ally + (ally - 4)
        state_size = n * (4 + ally_shield + types) + m * (3 + enemy_shield + types) + n * self.map.n_actions
        limit = settings.episode_limit or self.map.episode_limit
        layout = (("moves", (4,)), ("enemies", (m, enemy)), ("allies", (n - 1, ally)), ("own", (ally - 4,)))
        sizes = (n, self.map.n_actions, obs_size, state_size, limit)
        self.spec = Spec("battle", *sizes, "cooperative", HALF, HALF, layout)
        one_hot = np.array([[name == t for t in self.map.type_names] for name in self._names()], np.float32)
        self.types = one_hot.reshape(n + m, types)
        worth = self.rules.hp[n:].sum() + self.rules.max_shield[n:].sum() + KILL * m + WIN
        self.reward_scale = LARGEST_RETURN / float(worth)
        self._reset = over_worlds(self._reset_all)
        self._step = over_worlds(self._step_all)

    def _names(self) -> tuple[str, ...]:
        return self.map.allies.names + self.map.enemies.names

    def reset(self, key: Array) -> tuple[BattleState, Timestep]:
        return self._reset(jax.random.uniform(key, (2, len(self._names())), minval=-1.0))

    def step(self, state: BattleState, actions: Int[Array, " agent"], key: Array) -> tuple[BattleState, Timestep]:
        """Nothing is left to chance once the units stand: the key is not used."""
        return self._step((state, actions.astype(jnp.int32)))

    # --- from here on: many worlds, their axis the last one

    def _reset_all(self, lots: Float[Array, "2 unit world"]) -> tuple[BattleState, Timestep]:
        start = np.concatenate([self.map.allies.start, self.map.enemies.start])
        moves = self.rules.speed > 0
        x, y = (start[:, i, None] + self.settings.start_noise * moves * lots[i] for i in range(2))
        ground = self.rules.walkable(x, y)
        x, y = (jnp.where(ground, place, start[:, i, None]) for i, place in enumerate((x, y)))
        nothing = jnp.zeros_like(x)
        energy = np.array([u.starting_energy for u in self.map.units], np.float32)[:, None]
        fight = Fight(
            jnp.clip(x, 0.0, SIZE),
            jnp.clip(y, 0.0, SIZE),
            nothing + self.rules.hp,
            nothing + self.rules.max_shield,
            nothing,
            nothing + energy,
            nothing,
        )
        n = self.spec.n_agents
        state = BattleState(fight, jnp.full((n, lots.shape[-1]), -1, jnp.int32))
        return state, self._show(state, jnp.zeros(lots.shape[-1:]))

    def _step_all(self, arguments: tuple[BattleState, Array]) -> tuple[BattleState, Timestep]:
        state, actions = arguments
        before, n = state.fight, self.spec.n_agents
        orders = self._orders(before, actions)
        lost = jnp.zeros_like(before.health[n:])

        def loop(_, carry: tuple[Fight, Array]) -> tuple[Fight, Array]:
            fight, lost = carry
            after = self.rules.loop(fight, orders)
            gone = (fight.health + fight.shield - after.health - after.shield)[n:]
            return after, lost + jnp.maximum(gone, 0.0)

        fight, lost = jax.lax.fori_loop(0, LOOPS, loop, (before, lost))
        state = BattleState(fight, actions)
        killed = ((before.health > 0) & (fight.health <= 0))[n:].sum(0)
        we_stand, they_stand = self._standing(fight)
        won = we_stand & ~they_stand
        reward = (lost.sum(0) + KILL * killed + WIN * won) * self.reward_scale
        if self.settings.reward_sparse:
            reward = won * 1.0 - (they_stand & ~we_stand)
        return state, self._show(state, reward)

    def _orders(self, fight: Fight, actions: Int[Array, "agent world"]) -> Orders:
        n = self.spec.n_agents
        at = actions - FIRST_TARGET
        healer = self.rules.healer[:n]
        heal = (at[:, None] == jnp.arange(n)[:, None]) & healer[:, None] if healer.any() else None
        walk_x = (actions == EAST) * 1.0 - (actions == WEST)
        walk_y = (actions == NORTH) * 1.0 - (actions == SOUTH)
        idle = (actions == STOP) | (at >= 0)
        return Orders(walk_x, walk_y, jnp.where(healer, -1, at), idle, heal, self.rules.corners(fight))

    def _standing(self, fight: Fight) -> tuple[Array, Array]:
        """Whether either side still has somebody who can fight; medivacs alone cannot."""
        stands = (fight.health > 0) & self.rules.fights
        n = self.spec.n_agents
        return stands[:n].any(0), stands[n:].any(0)

    def _show(self, state: BattleState, reward: Float[Array, " world"]) -> Timestep:
        fight, n = state.fight, self.spec.n_agents
        alive = fight.health > 0
        dx, dy = fight.x[None] - fight.x[:n, None], fight.y[None] - fight.y[:n, None]
        d2 = dx**2 + dy**2
        available = self._available(fight, alive, d2)
        we_stand, they_stand = self._standing(fight)
        info = {
            "battle_won": (we_stand & ~they_stand).astype(jnp.float32),
            "dead_allies": (~alive[:n]).sum(0).astype(jnp.float32),
            "dead_enemies": (~alive[n:]).sum(0).astype(jnp.float32),
        }
        return Timestep(
            obs=self._observe(fight, alive, dx, dy, d2, available).astype(jnp.float16).astype(jnp.float32),
            state=self._whole(state, alive).astype(jnp.float16).astype(jnp.float32),
            avail_actions=available,
            reward=jnp.broadcast_to(reward, (n, *reward.shape)),
            terminated=~we_stand | ~they_stand,
            alive=alive[:n],
            info=info,
        )

    def _available(self, fight: Fight, alive: Array, d2: Array) -> Array:
        """`[agent, action, world]`: the dead do nothing, the living may stop, go where there is ground, and shoot."""
        n, m = self.spec.n_agents, len(self.map.enemies)
        x, y, here = fight.x[:n], fight.y[:n], alive[:n]
        # Half the way of a move is about how far a step leads.
        ways = [(0, MOVE / 2), (0, -MOVE / 2), (MOVE / 2, 0), (-MOVE / 2, 0)]
        moves = [here & self.rules.walkable(x + dx, y + dy, slice(n)) for dx, dy in ways]
        targets = alive[None, n:] & (d2[:, n:] <= SHOOT**2)
        healer = self.rules.healer[:n]
        if healer.any():
            reach = self.map.allies.column("attack_range")[:, None, None]
            others = alive[None, :n] & (d2[:, :n] <= reach**2) & self.rules.healable[None, :n]
            patients = jnp.zeros_like(targets).at[:, : min(n, m)].set(others[:, :m])
            targets = jnp.where(healer[:, None], patients, targets)
        rest = jnp.stack([~here, here, *moves], 1)
        return jnp.concatenate([rest, targets & here[:, None]], 1)

    def _features(self, fight: Fight, rows: slice, shielded: bool) -> list[Array]:
        """Health, shield and type of some units, each `[unit, world]`."""
        columns = [fight.health[rows] / self.rules.hp[rows]]
        if shielded:
            columns.append(fight.shield[rows] / np.maximum(self.rules.max_shield[rows], 1.0))
        return columns + [jnp.broadcast_to(t[:, None], columns[0].shape) for t in self.types[rows].T]

    def _observe(self, fight: Fight, alive: Array, dx: Array, dy: Array, d2: Array, available: Array) -> Array:
        n = self.spec.n_agents
        seen = alive[None] & alive[:n, None] & (d2 < SIGHT**2)
        far = jnp.sqrt(d2) / SIGHT
        ours = self._features(fight, slice(0, n), self.map.allies.shielded)
        theirs = self._features(fight, slice(n, None), self.map.enemies.shielded)

        def block(first: Array, rows: slice, features: list[Array]) -> Array:
            """`[agent, unit, feature, world]`, zeros for what is not seen."""
            place = [far[:, rows], dx[:, rows] / SIGHT, dy[:, rows] / SIGHT]
            each = [jnp.broadcast_to(f[None], far[:, rows].shape) for f in features]
            return jnp.where(seen[:, rows, None], jnp.stack([first, *place, *each], 2), 0.0)

        # A medivac's targets are its own side; whom it sees is what counts then.
        shootable = (d2[:, n:] <= SHOOT**2) & seen[:, n:]
        enemies = block(shootable.astype(jnp.float32), slice(n, None), theirs)
        allies = block(jnp.ones_like(far[:, :n]), slice(0, n), ours)
        # Everybody but oneself: from one's own place on, the next one.
        later = np.arange(n - 1)[None, :] >= np.arange(n)[:, None]
        allies = jnp.where(later[..., None, None], allies[:, 1:], allies[:, :-1])
        own = jnp.stack(ours, 1) * alive[:n, None]
        moves = available[:, NORTH:FIRST_TARGET].astype(jnp.float32)
        worlds = far.shape[-1:]
        parts = [moves, enemies.reshape(n, -1, *worlds), allies.reshape(n, (n - 1) * allies.shape[2], *worlds), own]
        return jnp.concatenate(parts, 1)

    def _whole(self, state: BattleState, alive: Array) -> Array:
        """The state of the world: everybody, seen or not, and what the agents did last."""
        fight, n = state.fight, self.spec.n_agents
        x, y = (fight.x - SIZE / 2) / SIZE, (fight.y - SIZE / 2) / SIZE
        period = np.maximum(self.rules.ally_arms.period, 1.0)
        busy = jnp.maximum(fight.cooldown[:n], 0.0) / period
        charge = fight.energy[:n] / np.maximum(self.rules.max_energy[:n], 1.0)
        second = jnp.where(self.rules.healer[:n], charge, busy)
        ours = self._features(fight, slice(0, n), self.map.allies.shielded)
        theirs = self._features(fight, slice(n, None), self.map.enemies.shielded)
        allies = jnp.stack([ours[0], second, x[:n], y[:n], *ours[1:]], 1) * alive[:n, None]
        enemies = jnp.stack([theirs[0], x[n:], y[n:], *theirs[1:]], 1) * alive[n:, None]
        last = (state.last_actions[:, None] == jnp.arange(self.spec.n_actions)[:, None]).astype(jnp.float32)
        worlds = fight.x.shape[-1:]
        return jnp.concatenate([part.reshape(-1, *worlds) for part in (allies, enemies, last)])

    def render(self, state: BattleState):
        from omg.envs.battle.picture import draw

        return draw(self.map, state.fight, state.last_actions)


def over_worlds(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """From a function of many worlds, their axis the last, to one of a single world that `vmap` turns back into it.

    Under several `vmap`s (seeds and worlds) all axes become one.
    """

    def last(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, -1), tree)

    def first(tree: Any) -> Any:
        return jax.tree.map(lambda x: jnp.moveaxis(x, -1, 0), tree)

    @custom_vmap
    def many(argument: Any) -> Any:
        return first(function(last(argument)))

    @many.def_vmap
    def _(size: int, batched: Any, argument: Any) -> Any:
        argument = _spread(argument, batched[0], size)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), argument)
        worlds = jax.tree.leaves(argument)[0].shape[1]
        out = many(flat)
        out = jax.tree.map(lambda x: x.reshape(size, worlds, *x.shape[1:]), out)
        return out, jax.tree.map(lambda _: True, out)

    @custom_vmap
    def one(argument: Any) -> Any:
        return jax.tree.map(lambda x: x[0], many(jax.tree.map(lambda x: x[None], argument)))

    @one.def_vmap
    def _(size: int, batched: Any, argument: Any) -> Any:
        out = many(_spread(argument, batched[0], size))
        return out, jax.tree.map(lambda _: True, out)

    return one


def _spread(tree: Any, batched: Any, size: int) -> Any:
    """Every leaf with the worlds' axis, repeated where it had none."""
    return jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x[None], (size, *x.shape)), tree, batched)
