"""How a number falls with the steps taken in the world."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jaxtyping import Array, Float


@dataclass(frozen=True)
class DecayThenFlatSchedule:
    """From `start` to `finish` over `time_length` steps, then flat; straight (`linear`) or exponential (`exp`)."""

    start: float
    finish: float
    time_length: int
    decay: str = "linear"

    def eval(self, t_env: Array | int) -> Float[Array, ""]:
        t = jnp.asarray(t_env, jnp.float32)
        if self.decay == "exp":
            # Reaches a fixed small number at time_length, whatever the scale; never falls below `finish`.
            scale = -self.time_length / jnp.log(max(self.finish, 0.01))
            return jnp.clip(jnp.exp(-t / scale), self.finish, self.start)
        passed = jnp.clip(t / max(self.time_length, 1), 0.0, 1.0)
        return self.start + (self.finish - self.start) * passed
