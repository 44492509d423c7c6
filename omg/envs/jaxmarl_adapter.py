"""Any discrete-action world of JaxMARL as one of ours: padded to common sizes, and masked."""

from __future__ import annotations

import contextlib
import inspect
import io
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from omg.envs.multiagentenv import Kind, MultiAgentEnv, Spec, Storage, Timestep
from omg.utils.settings import UserError, nearest

COOPERATIVE = {"MPE_simple_spread_v3", "MPE_simple_reference_v3", "MPE_simple_speaker_listener_v4", "switch_riddle"}
COOPERATIVE |= {"HeuristicEnemySMAX", "hanabi", "overcooked", "overcooked_v2"}


def import_jaxmarl() -> ModuleType:
    """JaxMARL, without the lines it prints while it is imported."""
    with contextlib.redirect_stdout(io.StringIO()):
        import jaxmarl
    return jaxmarl


class JaxMARLWorld(MultiAgentEnv):
    """`env_args.name` is JaxMARL's name of the world; `kind` and `episode_limit` are ours; the rest goes to JaxMARL."""

    def __init__(self, env_args: Mapping[str, Any]):
        options = dict(env_args)
        name, kind = options.pop("name", None), options.pop("kind", None)
        limit = options.pop("episode_limit", None)
        self.game = _make(name, options)
        self.agents = list(self.game.agents)
        self.actions = [_n_actions(self.game.action_space(a), a, name) for a in self.agents]
        obs, state = _try(lambda: jax.eval_shape(self.game.reset, jax.random.key(0)), name)
        if not isinstance(obs, dict) or any(a not in obs for a in self.agents):
            raise UserError(f"JaxMARL's {name} does not fit: it gives no observation of its own to each agent.")
        self.obs_sizes = [int(np.prod(obs[a].shape)) for a in self.agents]
        self.has_state = "world_state" in obs
        self.legal = _legal_actions(self.game, state)

        obs_size, n_actions = max(self.obs_sizes), max(self.actions)
        shape = obs["world_state"].shape if self.has_state else (len(self.agents) * obs_size,)
        small = obs[self.agents[0]].dtype.name
        whole = small if small in ("int8", "uint8", "bool") and not self.has_state else "float32"
        storage = Storage(whole)
        kind = kind or ("cooperative" if name in COOPERATIVE else "mixed")
        if kind not in ("cooperative", "zero-sum", "mixed"):
            raise UserError(f"env_args.kind takes 'cooperative', 'zero-sum' or 'mixed', not {kind!r}.")
        self.spec = Spec(
            name, len(self.agents), n_actions, obs_size, int(np.prod(shape)), _limit(self.game, limit, name),
            _kind(kind), storage, storage,
        )  # fmt: skip
        self.can = jnp.arange(n_actions) < jnp.array(self.actions)[:, None]
        _try(lambda: jax.eval_shape(self._first_step, jax.random.key(0)), name)

    def _first_step(self, key: Array):
        return self.step(self.reset(key)[0], jnp.zeros(self.spec.n_agents, jnp.int32), key)

    def reset(self, key: Array) -> tuple[Any, Timestep]:
        obs, game = self.game.reset(key)
        n = self.spec.n_agents
        seen = self._show(game, obs, jnp.zeros(n), jnp.zeros((), bool), jnp.ones(n, bool))
        return (game, jnp.zeros((), jnp.int32)), seen

    def step(self, state: Any, actions: Int[Array, " agent"], key: Array) -> tuple[Any, Timestep]:
        game, t = state
        named = {a: actions[i] for i, a in enumerate(self.agents)}
        obs, game, rewards, dones, _ = self.game.step_env(key, game, named)
        reward = jnp.stack([jnp.asarray(rewards[a], jnp.float32).reshape(()) for a in self.agents])
        # Who is done while the others play on has left; the end of everything is nobody's leaving.
        alive = ~jnp.stack([jnp.asarray(dones[a], bool).reshape(()) for a in self.agents]) | dones["__all__"]
        # A world that stops at its last allowed step has run out of time, which is not an end of the game.
        terminated = jnp.asarray(dones["__all__"], bool).reshape(()) & (t + 1 < self.spec.episode_limit)
        return (game, t + 1), self._show(game, obs, reward, terminated, alive)

    def _show(self, game: Any, obs: dict, reward: Array, terminated: Array, alive: Array) -> Timestep:
        views = [obs[a].astype(jnp.float32).ravel() for a in self.agents]
        padded = jnp.stack([jnp.pad(v, (0, self.spec.obs_size - v.size)) for v in views])
        return Timestep(
            obs=padded,
            state=obs["world_state"].astype(jnp.float32).ravel() if self.has_state else padded.ravel(),
            avail_actions=self._available(game),
            reward=reward,
            terminated=terminated,
            alive=alive,
            info={},
        )

    def _available(self, game: Any) -> Array:
        if self.legal is None:
            return self.can
        legal = self.legal(game)
        masks = [jnp.asarray(legal[a], bool).ravel() for a in self.agents]
        return jnp.stack([jnp.pad(m, (0, self.spec.n_actions - m.size)) for m in masks])


def _make(name: str | None, options: dict[str, Any]) -> Any:
    jaxmarl = import_jaxmarl()
    known = jaxmarl.registered_envs
    if name not in known:
        what = "env_args.name is missing" if name is None else f"JaxMARL has no world {name!r}"
        raise UserError(f"{what}.{nearest(str(name), known)} Known: {', '.join(known)}.")
    return _try(lambda: jaxmarl.make(name, **options), name)


def _try(build: Any, name: str | None) -> Any:
    """JaxMARL's own complaint as one sentence: whatever it raises while being built, the world does not fit."""
    try:
        return build()
    except UserError:
        raise
    except Exception as error:
        detail = " ".join(str(error).split())[:200]
        raise UserError(f"JaxMARL's {name} does not fit: {type(error).__name__}: {detail}") from error


def _n_actions(space: Any, agent: Any, name: str | None) -> int:
    if type(space).__name__ != "Discrete":
        kind = type(space).__name__
        raise UserError(f"JaxMARL's {name} does not fit: agent {agent} has {kind} actions, and ours are discrete.")
    return int(space.n)


def _legal_actions(game: Any, state: Any) -> Any:
    """The world's own function of available actions, where it has one."""
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
    inner, outer = getattr(game, "num_inner_steps", None), getattr(game, "num_outer_steps", 1)
    found = limit or getattr(game, "max_steps", None) or (inner * outer if inner else None)
    if not found:
        raise UserError(f"JaxMARL's {name} does not say how long an episode lasts: add env_args.episode_limit=N.")
    if "max_steps" in inspect.signature(type(game).__init__).parameters and limit:
        game.max_steps = limit
    return int(found)


def _kind(kind: str) -> Kind:
    return kind  # type: ignore[return-value]
