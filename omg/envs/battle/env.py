"""Battle: SMAC's maps and rules as a pure function. Each agent controls an allied unit; the enemies are scripted.

A step is eight game loops. Observations, states, actions and rewards have SMAC's layout, entry by entry.
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
from omg.envs.battle.picture import ALLY, draw
from omg.envs.multiagentenv import MultiAgentEnv, Spec, Storage, Timestep, rows_of
from omg.utils.settings import UserError

NOOP, STOP, NORTH, SOUTH, EAST, WEST, FIRST_TARGET = range(7)
MOVES = ("noop", "stop", "north", "south", "east", "west")
LOOPS = 8
SIGHT, SHOOT, MOVE = 9.0, 6.0, 2.0
WIN, KILL, LARGEST_RETURN = 200.0, 10.0, 20.0
HALF = Storage("float16")


@dataclass(frozen=True)
class BattleSettings:
    """The settings in `env_args`. The environment configuration battle.yaml explains them."""

    map_name: str = "3m"
    map_file: str | None = None
    episode_limit: int | None = None
    reward_sparse: bool = False
    start_noise: float = 0.15

    def __post_init__(self) -> None:
        if self.episode_limit is not None and self.episode_limit < 1:
            raise UserError(f"env_args.episode_limit is {self.episode_limit}; it must be 1 or more.")
        if not 0 <= self.start_noise <= 2:
            raise UserError(f"env_args.start_noise is {self.start_noise}; it must be between 0 and 2 cells.")


class BattleState(NamedTuple):
    """The environment state: the units, and the last joint action (-1 before the first step)."""

    fight: Fight
    last_actions: Int[Array, " agent"]


class Battle(MultiAgentEnv):
    """SMAC's maps: each agent controls an allied unit against scripted enemies.

    `reset` and `step` take one environment. Under `vmap` they run the same code with the environment axis last.
    """

    Settings = BattleSettings
    seat_colours = (ALLY,)

    def __init__(self, settings: BattleSettings):
        self.settings = settings
        self.map = load_map(settings.map_name, settings.map_file)
        self.rules = Rules(self.map)
        start = jnp.concatenate([self.map.allies.start, self.map.enemies.start])
        if not self.rules.walkable(start[:, :1], start[:, 1:]).all():
            raise UserError(f"map {self.map.name}: a unit starts where there is no ground; check its rooms.")
        n, m, types = len(self.map.allies), len(self.map.enemies), len(self.map.type_names)
        ally_shield, enemy_shield = int(self.map.allies.shielded), int(self.map.enemies.shielded)
        enemy, ally = 5 + enemy_shield + types, 5 + ally_shield + types
        obs_size = 4 + m * enemy + (n - 1) * ally + (ally - 4)
        state_size = n * (4 + ally_shield + types) + m * (3 + enemy_shield + types) + n * self.map.n_actions
        limit = settings.episode_limit or self.map.episode_limit
        layout = (("moves", (4,)), ("enemies", (m, enemy)), ("allies", (n - 1, ally)), ("own", (ally - 4,)))
        sizes = (n, self.map.n_actions, obs_size, state_size, limit)
        agents = rows_of(0, n, 4 + ally_shield + types)
        self.spec = Spec("battle", *sizes, "cooperative", HALF, HALF, layout, agents, partial=True)
        self.action_names = (*MOVES, *(f"target {i + 1}" for i in range(self.map.n_actions - len(MOVES))))
        one_hot = np.array([[name == t for t in self.map.type_names] for name in self._names()], np.float32)
        self.types = one_hot.reshape(n + m, types)
        worth = self.rules.hp[n:].sum() + self.rules.max_shield[n:].sum() + KILL * m + WIN
        self.reward_scale = LARGEST_RETURN / float(worth)
        self._reset = over_envs(self._reset_all)
        self._step = over_envs(self._step_all)

    def _names(self) -> tuple[str, ...]:
        return self.map.allies.names + self.map.enemies.names

    def reset(self, key: Array) -> tuple[BattleState, Timestep]:
        return self._reset(jax.random.uniform(key, (2, len(self._names())), minval=-1.0))

    def step(self, state: BattleState, actions: Int[Array, " agent"], key: Array) -> tuple[BattleState, Timestep]:
        """Steps are deterministic: the key is not used."""
        return self._step((state, actions.astype(jnp.int32)))

    # --- the following methods work on many environments, whose axis is the last one

    def _reset_all(self, noise: Float[Array, "2 unit env"]) -> tuple[BattleState, Timestep]:
        start = np.concatenate([self.map.allies.start, self.map.enemies.start])
        mobile = self.rules.speed > 0
        x, y = (start[:, i, None] + self.settings.start_noise * mobile * noise[i] for i in range(2))
        ground = self.rules.walkable(x, y)
        x, y = (jnp.where(ground, place, start[:, i, None]) for i, place in enumerate((x, y)))
        zeros = jnp.zeros_like(x)
        energy = np.array([u.starting_energy for u in self.map.units], np.float32)[:, None]
        fight = Fight(
            jnp.clip(x, 0.0, SIZE),
            jnp.clip(y, 0.0, SIZE),
            zeros + self.rules.hp,
            zeros + self.rules.max_shield,
            zeros,
            zeros + energy,
            zeros,
        )
        n = self.spec.n_agents
        state = BattleState(fight, jnp.full((n, noise.shape[-1]), -1, jnp.int32))
        return state, self._timestep(state, jnp.zeros(noise.shape[-1:]))

    def _step_all(self, arguments: tuple[BattleState, Array]) -> tuple[BattleState, Timestep]:
        state, actions = arguments
        before, n = state.fight, self.spec.n_agents
        orders = self._orders(before, actions)
        lost = jnp.zeros_like(before.health[n:])

        def loop(_, carry: tuple[Fight, Array]) -> tuple[Fight, Array]:
            fight, lost = carry
            after = self.rules.loop(fight, orders)
            damage = (fight.health + fight.shield - after.health - after.shield)[n:]
            return after, lost + jnp.maximum(damage, 0.0)

        fight, lost = jax.lax.fori_loop(0, LOOPS, loop, (before, lost))
        state = BattleState(fight, actions)
        killed = ((before.health > 0) & (fight.health <= 0))[n:].sum(0)
        allies_left, enemies_left = self._sides_left(fight)
        won = allies_left & ~enemies_left
        reward = (lost.sum(0) + KILL * killed + WIN * won) * self.reward_scale
        if self.settings.reward_sparse:
            reward = won * 1.0 - (enemies_left & ~allies_left)
        return state, self._timestep(state, reward)

    def _orders(self, fight: Fight, actions: Int[Array, "agent env"]) -> Orders:
        """The allies' actions as orders for the game loops of this step."""
        n = self.spec.n_agents
        at = actions - FIRST_TARGET
        healer = self.rules.healer[:n]
        heal = (at[:, None] == jnp.arange(n)[:, None]) & healer[:, None] if healer.any() else None
        walk_x = (actions == EAST) * 1.0 - (actions == WEST)
        walk_y = (actions == NORTH) * 1.0 - (actions == SOUTH)
        idle = (actions == STOP) | (at >= 0)
        return Orders(walk_x, walk_y, jnp.where(healer, -1, at), idle, heal, self.rules.corners(fight))

    def _sides_left(self, fight: Fight) -> tuple[Array, Array]:
        """Whether the allies and the enemies still have a unit that can fight. Medivacs cannot."""
        fighting = (fight.health > 0) & self.rules.fights
        n = self.spec.n_agents
        return fighting[:n].any(0), fighting[n:].any(0)

    def _timestep(self, state: BattleState, reward: Float[Array, " env"]) -> Timestep:
        fight, n = state.fight, self.spec.n_agents
        alive = fight.health > 0
        dx, dy = fight.x[None] - fight.x[:n, None], fight.y[None] - fight.y[:n, None]
        d2 = dx**2 + dy**2
        available = self._available(fight, alive, d2)
        allies_left, enemies_left = self._sides_left(fight)
        info = {
            "battle_won": (allies_left & ~enemies_left).astype(jnp.float32),
            "dead_allies": (~alive[:n]).sum(0).astype(jnp.float32),
            "dead_enemies": (~alive[n:]).sum(0).astype(jnp.float32),
        }
        return Timestep(
            obs=self._observe(fight, alive, dx, dy, d2, available).astype(jnp.float16).astype(jnp.float32),
            state=self._global_state(state, alive).astype(jnp.float16).astype(jnp.float32),
            avail_actions=available,
            reward=jnp.broadcast_to(reward, (n, *reward.shape)),
            terminated=~allies_left | ~enemies_left,
            alive=alive[:n],
            info=info,
        )

    def _available(self, fight: Fight, alive: Array, d2: Array) -> Array:
        """`[agent, action, env]`: no-op for dead units; for others stop, moves where there is ground, and attacks."""
        n, m = self.spec.n_agents, len(self.map.enemies)
        x, y, living = fight.x[:n], fight.y[:n], alive[:n]
        # A unit moves about half of SMAC's move amount in a step.
        directions = [(0, MOVE / 2), (0, -MOVE / 2), (MOVE / 2, 0), (-MOVE / 2, 0)]
        moves = [living & self.rules.walkable(x + dx, y + dy, slice(n)) for dx, dy in directions]
        targets = alive[None, n:] & (d2[:, n:] <= SHOOT**2)
        healer = self.rules.healer[:n]
        if healer.any():
            reach = self.map.allies.column("attack_range")[:, None, None]
            others = alive[None, :n] & (d2[:, :n] <= reach**2) & self.rules.healable[None, :n]
            patients = jnp.zeros_like(targets).at[:, : min(n, m)].set(others[:, :m])
            targets = jnp.where(healer[:, None], patients, targets)
        rest = jnp.stack([~living, living, *moves], 1)
        return jnp.concatenate([rest, targets & living[:, None]], 1)

    def _features(self, fight: Fight, rows: slice, shielded: bool) -> list[Array]:
        """Health, shield (if `shielded`) and one-hot type of some units, each `[unit, env]`."""
        columns = [fight.health[rows] / self.rules.hp[rows]]
        if shielded:
            columns.append(fight.shield[rows] / np.maximum(self.rules.max_shield[rows], 1.0))
        return columns + [jnp.broadcast_to(t[:, None], columns[0].shape) for t in self.types[rows].T]

    def _observe(self, fight: Fight, alive: Array, dx: Array, dy: Array, d2: Array, available: Array) -> Array:
        """`[agent, obs, env]`: available moves, enemies, other allies, and the agent's own unit (`spec.obs_layout`)."""
        n = self.spec.n_agents
        visible = alive[None] & alive[:n, None] & (d2 < SIGHT**2)
        distance = jnp.sqrt(d2) / SIGHT
        ally_features = self._features(fight, slice(0, n), self.map.allies.shielded)
        enemy_features = self._features(fight, slice(n, None), self.map.enemies.shielded)

        def block(first: Array, rows: slice, features: list[Array]) -> Array:
            """`[agent, unit, feature, env]`; zeros for units that are not visible."""
            position = [distance[:, rows], dx[:, rows] / SIGHT, dy[:, rows] / SIGHT]
            each = [jnp.broadcast_to(f[None], distance[:, rows].shape) for f in features]
            return jnp.where(visible[:, rows, None], jnp.stack([first, *position, *each], 2), 0.0)

        # For medivacs, whose targets are allies, the first entry also tells whether the enemy is near.
        shootable = (d2[:, n:] <= SHOOT**2) & visible[:, n:]
        enemies = block(shootable.astype(jnp.float32), slice(n, None), enemy_features)
        allies = block(jnp.ones_like(distance[:, :n]), slice(0, n), ally_features)
        # All allies except the observing agent: from its own index on, take the next ally.
        later = np.arange(n - 1)[None, :] >= np.arange(n)[:, None]
        allies = jnp.where(later[..., None, None], allies[:, 1:], allies[:, :-1])
        own = jnp.stack(ally_features, 1) * alive[:n, None]
        moves = available[:, NORTH:FIRST_TARGET].astype(jnp.float32)
        envs = distance.shape[-1:]
        allies = allies.reshape(n, (n - 1) * allies.shape[2], *envs)
        return jnp.concatenate([moves, enemies.reshape(n, -1, *envs), allies, own], 1)

    def _global_state(self, state: BattleState, alive: Array) -> Array:
        """The global state: all living units, whether visible or not, and the last actions (one-hot)."""
        fight, n = state.fight, self.spec.n_agents
        x, y = (fight.x - SIZE / 2) / SIZE, (fight.y - SIZE / 2) / SIZE
        period = np.maximum(self.rules.ally_arms.period, 1.0)
        reloading = jnp.maximum(fight.cooldown[:n], 0.0) / period
        charge = fight.energy[:n] / np.maximum(self.rules.max_energy[:n], 1.0)
        second = jnp.where(self.rules.healer[:n], charge, reloading)
        ally_features = self._features(fight, slice(0, n), self.map.allies.shielded)
        enemy_features = self._features(fight, slice(n, None), self.map.enemies.shielded)
        allies = jnp.stack([ally_features[0], second, x[:n], y[:n], *ally_features[1:]], 1) * alive[:n, None]
        enemies = jnp.stack([enemy_features[0], x[n:], y[n:], *enemy_features[1:]], 1) * alive[n:, None]
        last = (state.last_actions[:, None] == jnp.arange(self.spec.n_actions)[:, None]).astype(jnp.float32)
        envs = fight.x.shape[-1:]
        return jnp.concatenate([block.reshape(-1, *envs) for block in (allies, enemies, last)])

    def imagine(self, state: Any, described: np.ndarray) -> Any:
        """Units that are described as dead stay where they are."""
        fight, n = state.fight, self.spec.n_agents
        allies = described[np.array(self.spec.agents_in_state)]
        m, types = len(self.map.enemies), len(self.map.type_names)
        enemies = described[allies.size :][: m * (3 + self.map.enemies.shielded + types)].reshape(m, -1)
        health = np.concatenate([allies[:, 0], enemies[:, 0]]).clip(0, 1)
        places = np.concatenate([allies[:, 2:4], enemies[:, 1:3]]).T * SIZE + SIZE / 2
        alive = health > 0.02
        x, y = (np.where(alive, place, now) for place, now in zip(places, (fight.x, fight.y), strict=True))
        of_allies = allies[:, 4] if self.map.allies.shielded else np.zeros(n)
        of_enemies = enemies[:, 3] if self.map.enemies.shielded else np.zeros(m)
        shield = np.concatenate([of_allies, of_enemies]).clip(0, 1) * self.rules.max_shield[:, 0]
        health = np.where(alive, health, 0) * self.rules.hp[:, 0]
        fight = fight._replace(x=x, y=y, health=health, shield=shield)
        return state._replace(fight=fight, last_actions=np.full(n, -1))

    def draw(self, state: BattleState):
        return draw(self.map, state.fight, state.last_actions, SIGHT)


def over_envs(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Turns a function of many environments, whose axis is the last, into a function of one environment.

    `vmap` of the result calls the original function. Nested `vmap`s (over seeds and environments) are merged into one
    axis.
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
        n_envs = jax.tree.leaves(argument)[0].shape[1]
        out = many(flat)
        out = jax.tree.map(lambda x: x.reshape(size, n_envs, *x.shape[1:]), out)
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
    """Every leaf with a leading environment axis; leaves without one are repeated."""
    return jax.tree.map(lambda x, b: x if b else jnp.broadcast_to(x[None], (size, *x.shape)), tree, batched)
