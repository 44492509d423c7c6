"""Environments of JaxMARL with discrete actions. Observations and action sets are padded to one size and masked."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from omg.envs.multiagentenv import MultiAgentEnv, Spec, Storage, Timestep, check_game_type
from omg.envs.packages import missing_package, silenced
from omg.envs.pixels import PAINTS, STORAGE, frame
from omg.utils.settings import UserError, choose, convert, nearest

COOPERATIVE = {"MPE_simple_spread_v3", "MPE_simple_reference_v3", "MPE_simple_speaker_listener_v4", "switch_riddle"}
COOPERATIVE |= {"HeuristicEnemySMAX", "hanabi", "overcooked", "overcooked_v2"}
SEEN_WHOLE = {"overcooked", "coin_game", "MPE_simple_v3", "MPE_simple_tag_v3", "MPE_simple_spread_v3"}
"""Games in which nothing is out of an agent's sight (velocities may be)."""

COIN_GAME = (3, 3, 4)
"""The coin game's board: rows, columns and layers (players and coins of either colour)."""

OF_A_COOK = (0, 2, 3, 4, 5)
"""The layers of a cook's observation that describe the cook alone: where it stands, and one for each direction."""

PRICE = 20
"""What a soup pays in Overcooked; both cooks may deliver one in the same step."""


def import_jaxmarl() -> ModuleType:
    """Imports JaxMARL without the lines that it prints."""
    if "jaxmarl" in sys.modules and sys.modules["jaxmarl"] is not None:
        return sys.modules["jaxmarl"]
    try:
        with silenced():
            import jaxmarl
    except ImportError as error:
        raise missing_package("this environment", "jaxmarl", "pip install jaxmarl", error) from error
    return jaxmarl


class JaxMARLEnv(MultiAgentEnv):
    """An environment of JaxMARL.

    `env_args.name` is JaxMARL's name of the environment. `game_type` and `episode_limit` belong to this class.
    `layout` (Overcooked) and `scenario` (SMAX) may be names. `shaping` (Overcooked) is the weight of JaxMARL's shaped
    rewards, which count for both cooks alike. With `pixels` agents see frames (Overcooked and the coin game). All other
    settings are passed to JaxMARL.
    """

    def __init__(self, env_args: Mapping[str, Any]):
        options = dict(env_args)
        name, game_type = options.pop("name", None), options.pop("game_type", None)
        limit = options.pop("episode_limit", None)
        self.cooks = name == "overcooked"
        self.shaping = convert(options.pop("shaping", 0.0), float, "env_args.shaping") if self.cooks else 0.0
        pixels = convert(options.pop("pixels", False), bool, "env_args.pixels")
        if pixels and name not in PAINTS:
            raise UserError(f"env_args.pixels: {' and '.join(PAINTS)} have frames, {name} has none.")
        self.paints = PAINTS[name] if pixels else ()
        self.game = _make(name, options)
        self.agents = list(self.game.agents)
        self.actions = [_n_actions(self.game.action_space(a), a, name) for a in self.agents]
        obs, state = _try(lambda: jax.eval_shape(self.game.reset, jax.random.key(0)), name)
        if not isinstance(obs, dict) or any(a not in obs for a in self.agents):
            raise UserError(f"JaxMARL's {name} is not supported: it does not return one observation per agent.")
        shapes = {"overcooked": ("kitchen", obs[self.agents[0]].shape), "coin_game": ("board", COIN_GAME)}
        self.grid = shapes[name][1] if name in shapes else None
        layout = (shapes[name],) if name in shapes else ()
        if pixels:
            obs = {a: jax.eval_shape(self._frame, obs[a]) for a in self.agents}
            layout = (("frame", obs[self.agents[0]].shape),)
        self.obs_sizes = [int(np.prod(obs[a].shape)) for a in self.agents]
        self.has_state = "world_state" in obs
        self.legal = _legal_actions(self.game, state)

        obs_size, n_actions = max(self.obs_sizes), max(self.actions)
        shape = obs["world_state"].shape if self.has_state else (len(self.agents) * obs_size,)
        dtype = obs[self.agents[0]].dtype.name
        small = dtype in ("int8", "uint8", "bool") and not self.has_state
        storage = STORAGE if pixels else Storage(dtype if small else "float32")
        self.spec = Spec(
            f"{name}_pixels" if pixels else name, len(self.agents), n_actions, obs_size, int(np.prod(shape)),
            _limit(self.game, limit, name),
            check_game_type(game_type or ("cooperative" if name in COOPERATIVE else "mixed")), storage, storage,
            layout, self._cooks_in_state(obs_size) if self.cooks and not pixels else (),
            partial=name not in SEEN_WHOLE,
        )  # fmt: skip
        self.in_action_set = jnp.arange(n_actions) < jnp.array(self.actions)[:, None]
        _try(lambda: jax.eval_shape(self._first_step, jax.random.key(0)), name)

    def _cooks_in_state(self, obs_size: int) -> tuple[tuple[int, ...], ...]:
        """The global state lists the observations of all cooks."""
        own = np.arange(obs_size).reshape(self.grid)[..., list(OF_A_COOK)].ravel()
        return tuple(tuple(map(int, own + i * obs_size)) for i in range(len(self.agents)))

    def _first_step(self, key: Array):
        return self.step(self.reset(key)[0], jnp.zeros(self.spec.n_agents, jnp.int32), key)

    def reset(self, key: Array) -> tuple[Any, Timestep]:
        obs, game = self.game.reset(key)
        n = self.spec.n_agents
        soups = jnp.zeros(())
        timestep = self._timestep(game, obs, jnp.zeros(n), jnp.zeros((), bool), jnp.ones(n, bool), soups)
        return (game, jnp.zeros((), jnp.int32), soups), timestep

    def step(self, state: Any, actions: Int[Array, " agent"], key: Array) -> tuple[Any, Timestep]:
        game, t, soups = state
        by_agent = {a: actions[i] for i, a in enumerate(self.agents)}
        obs, game, rewards, dones, info = self.game.step_env(key, game, by_agent)
        reward = jnp.stack([jnp.asarray(rewards[a], jnp.float32).reshape(()) for a in self.agents])
        if self.cooks:
            soups = soups + reward[0] / PRICE
            reward = reward + self.shaping * sum(info["shaped_reward"].values())
        # An agent that is done while others continue is dead. The end of the whole episode is not a death.
        alive = ~jnp.stack([jnp.asarray(dones[a], bool).reshape(()) for a in self.agents]) | dones["__all__"]
        # Done at the last step of the time limit is a truncation, not a termination.
        terminated = jnp.asarray(dones["__all__"], bool).reshape(()) & (t + 1 < self.spec.episode_limit)
        return (game, t + 1, soups), self._timestep(game, obs, reward, terminated, alive, soups)

    def _timestep(self, game: Any, obs: dict, reward: Array, terminated: Array, alive: Array, soups: Array) -> Timestep:
        seen = [self._frame(obs[a]) if self.paints else obs[a].astype(jnp.float32) for a in self.agents]
        rows = [x.ravel() for x in seen]
        padded = jnp.stack([jnp.pad(row, (0, self.spec.obs_size - row.size)) for row in rows])
        return Timestep(
            obs=padded,
            state=obs["world_state"].astype(jnp.float32).ravel() if self.has_state else padded.ravel(),
            avail_actions=self._available(game),
            reward=reward,
            terminated=terminated,
            alive=alive,
            info={"soups": soups} if self.cooks else {},
        )

    def _frame(self, obs: Array) -> Float[Array, "high wide 3"]:
        return frame(obs.astype(jnp.float32).reshape(self.grid), self.paints)

    def _available(self, game: Any) -> Array:
        if self.legal is None:
            return self.in_action_set
        legal = self.legal(game)
        masks = [jnp.asarray(legal[a], bool).ravel() for a in self.agents]
        return jnp.stack([jnp.pad(m, (0, self.spec.n_actions - m.size)) for m in masks])


def _make(name: str | None, options: dict[str, Any]) -> Any:
    jaxmarl = import_jaxmarl()
    known = jaxmarl.registered_envs
    if name is None or name not in known:
        problem = "env_args.name is missing" if name is None else f"JaxMARL has no environment {name!r}"
        raise UserError(f"{problem}.{nearest(str(name), known)} Known: {', '.join(known)}.")
    options = {key: _by_name(name, key, value) for key, value in options.items()}
    return _try(lambda: jaxmarl.make(name, **options), name)


def _by_name(name: str, key: str, value: Any) -> Any:
    """JaxMARL's layout or scenario of that name; any other setting as it is."""
    if not isinstance(value, str):
        return value
    if key == "layout" and name in ("overcooked", "overcooked_v2"):
        from jaxmarl.environments import overcooked_layouts, overcooked_v2_layouts

        layouts = overcooked_layouts if name == "overcooked" else overcooked_v2_layouts
        return choose(layouts, value, "env_args.layout")
    if key == "scenario" and name in ("SMAX", "HeuristicEnemySMAX", "LearnedPolicyEnemySMAX"):
        from jaxmarl.environments.smax import map_name_to_scenario
        from jaxmarl.environments.smax.smax_env import MAP_NAME_TO_SCENARIO

        choose(MAP_NAME_TO_SCENARIO, value, "env_args.scenario")
        return map_name_to_scenario(value)
    return value


def _try(build: Callable[[], Any], name: str | None) -> Any:
    """Calls a function of JaxMARL and turns whatever it raises into a UserError of one sentence."""
    try:
        return build()
    except UserError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(f"JaxMARL's {name} is not supported: {type(error).__name__}: {detail}") from error


def _n_actions(space: Any, agent: Any, name: str | None) -> int:
    if type(space).__name__ != "Discrete":
        found = type(space).__name__
        raise UserError(
            f"JaxMARL's {name} is not supported: the actions of {agent} are {found}, and they must be discrete."
        )
    return int(space.n)


def _legal_actions(game: Any, state: Any) -> Any:
    """JaxMARL's function that returns the available actions, or None if the environment has none."""
    for method in ("get_avail_actions", "get_legal_moves"):
        legal = getattr(game, method, None)
        if legal is None:
            continue
        try:
            jax.eval_shape(legal, state)
        except NotImplementedError:
            continue
        return legal
    return None


def _limit(game: Any, limit: int | None, name: str | None) -> int:
    """The time limit: `env_args.episode_limit`, or JaxMARL's own."""
    inner, outer = getattr(game, "num_inner_steps", None), getattr(game, "num_outer_steps", 1)
    found = limit or getattr(game, "max_steps", None) or (inner * outer if inner else None)
    if not found and name == "hanabi":
        found = longest_hanabi_game(game) + 1
    if not found:
        raise UserError(f"JaxMARL's {name} has no time limit: add env_args.episode_limit=N.")
    if "max_steps" in inspect.signature(type(game).__init__).parameters and limit:
        game.max_steps = limit
    return int(found)


def longest_hanabi_game(game: Any) -> int:
    """An upper bound on the number of turns of a Hanabi game (97 for two players and the standard deck).

    Plays and discards each take a card: at most one for every card left in the deck after dealing, and one per player
    in the last round. A hint costs an information token, and only discards and completed colours return one. Hence
    there are at most as many hints as tokens, discards and colours. The time limit is one step longer, so that every
    game terminates and none is truncated.
    """
    cards = int(game.deck_size) - game.num_agents * game.hand_size + game.num_agents
    hints = game.max_info_tokens + cards + game.num_colors
    return cards + hints
