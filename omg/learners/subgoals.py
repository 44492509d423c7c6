"""The choice in hindsight: which of the next H states was the subgoal, judged by what the policy makes of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.modules.am.base import Seen
from omg.modules.vae import Gaussian
from omg.utils.settings import UserError

SubgoalMode = Literal["optimistic", "conservative", "random", "next", "fixed"]


@dataclass(frozen=True)
class SubgoalSettings:
    subgoal_mode: SubgoalMode = "optimistic"
    H: int = 5
    fixed_k: int = 1
    target_subgoal: Literal["next", "same"] = "next"
    eta_start: float = 1.0
    eta_finish: float = 0.0
    eta_anneal_time: int | None = None
    vae_path: str | None = None

    def __post_init__(self) -> None:
        if self.H < 1:
            raise UserError(f"H is {self.H}; a subgoal lies 1 or more steps ahead.")
        if not 1 <= self.fixed_k <= self.H:
            raise UserError(f"fixed_k is {self.fixed_k}; it lies between 1 and H ({self.H}).")


def eta(settings: SubgoalSettings, t_env: Array, t_max: int) -> Float[Array, ""]:
    """How often the policy learns on the chosen subgoal instead of the inferred one: falls from 1 to 0."""
    over = 0.3 * t_max if settings.eta_anneal_time is None else settings.eta_anneal_time
    gone = jnp.clip(t_env / max(over, 1), 0.0, 1.0)
    return settings.eta_start + gone * (settings.eta_finish - settings.eta_start)


def candidates(filled: Float[Array, "time batch slot"], horizon: int) -> Bool[Array, "ahead time batch slot"]:
    """Which of s_{t+1} … s_{t+H} are there: a state is, if the step that led to it was taken."""
    steps = filled[:-1] > 0
    ahead = [jnp.pad(steps[j:], ((0, j), (0, 0), (0, 0)))[: len(steps)] for j in range(horizon)]
    return jnp.stack(ahead) & steps


def candidate_values(
    network: Any,
    seen: Seen,
    hidden: Float[Array, "time batch slot hidden"],
    latents: Float[Array, "time batch slot latent"],
    avail_actions: Bool[Array, "time batch slot action"] | None,
    horizon: int,
) -> Float[Array, "ahead time batch slot"]:
    """V(s_t, f_ψ(s_{t+j})) for j = 1 … H: the mean of Q over available actions, or of a value head itself."""
    outputs = network.consider(seen.own[:-1], latents, hidden[:-1], horizon)
    if avail_actions is None:
        return outputs[..., 0]
    available = avail_actions[:-1]
    return jnp.where(available, outputs, 0.0).sum(-1) / jnp.maximum(available.sum(-1), 1)


def choose(
    values: Float[Array, "ahead time batch slot"],
    there: Bool[Array, "ahead time batch slot"],
    settings: SubgoalSettings,
    key: Array,
) -> Int[Array, "time batch slot"]:
    """How many steps ahead the subgoal lies (1 … H). Where there is no candidate the answer is 1 and means nothing."""
    mode, horizon = settings.subgoal_mode, values.shape[0]
    if mode == "optimistic":
        return jnp.where(there, values, -jnp.inf).argmax(0) + 1
    if mode == "conservative":
        return jnp.where(there, values, jnp.inf).argmin(0) + 1
    if mode == "random":
        return jnp.where(there, jax.random.uniform(key, there.shape), -1.0).argmax(0) + 1
    wanted = 1 if mode == "next" else min(settings.fixed_k, horizon)
    return jnp.clip(jnp.minimum(wanted, there.sum(0)), 1)


def pick_ahead(of_states: Gaussian, ahead: Int[Array, "time batch slot"]) -> Gaussian:
    """The distribution of the state that many steps after each step."""
    at = jnp.arange(ahead.shape[0])[:, None, None] + ahead
    at = jnp.minimum(at, of_states.mu.shape[0] - 1)[..., None]
    return Gaussian(*(jnp.take_along_axis(x, at, axis=0) for x in of_states))
