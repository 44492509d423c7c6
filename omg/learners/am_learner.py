"""Pre-training of a VAE on states collected from play, before any policy learns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from omg.modules.vae import VAE
from omg.utils.settings import setting

MOST_ROWS = 50_000
"""Rows, of a shuffled collection, from which the statistics of the latents are taken."""


@dataclass(frozen=True)
class VAESettings:
    am_learner: str = setting("am_learner", "pre-training: the learner of what an agent model or HOP+ needs (by name)")
    vae_beta: float = setting(0.01, "pre-training: weight of the VAE's KL term", low=0)
    vae_lr: float = setting(1e-3, "pre-training: learning rate", above=0)
    vae_batch_size: int = setting(256, "pre-training: rows per update", above=0)
    vae_updates: int = setting(6000, "pre-training: updates", above=0)
    vae_episodes: int = setting(64, "pre-training: episodes to collect from each member of the pool", above=0)
    trajectories: str | None = setting(None, "pre-training of goals: trajectories from omg collect; null: collect anew")


class AMLearner:
    """Squared error of the reconstruction + β·KL to the unit Gaussian, on rows sampled uniformly.

    Another learner, registered under a name of its own, needs `__init__(settings)` and `train`.
    """

    def __init__(self, settings: VAESettings):
        self.settings = settings
        self.optimiser = optax.adam(settings.vae_lr)
        self.compiled = jax.jit(self._updates, static_argnames="n")

    def loss(self, vae: VAE, s: Float[Array, "row s"], key: Array) -> tuple[Array, dict[str, Array]]:
        recons, kl = vae.losses(s, key)
        metrics = {"recons_loss": recons.mean(), "kl_loss": kl.mean()}
        return metrics["recons_loss"] + self.settings.vae_beta * metrics["kl_loss"], metrics

    def train(
        self, vae: VAE, data: Float[Array, "row s"], key: Array, report: Callable[[int, dict[str, float]], None]
    ) -> VAE:
        """All updates, in stretches; `report` gets the mean losses after each stretch."""
        vae = vae.fitted_to(data.mean(0), data.std(0))
        state, done, stretch = self.optimiser.init(_arrays(vae)), 0, max(1, self.settings.vae_updates // 20)
        while done < self.settings.vae_updates:
            n = min(stretch, self.settings.vae_updates - done)
            vae, state, metrics = self.compiled(vae, state, data, jax.random.fold_in(key, done), n=n)
            done += n
            report(done, {name: float(value.mean()) for name, value in metrics.items()})
        return vae.with_latents_of(data[:MOST_ROWS])

    def _updates(self, vae: VAE, state: Any, data: Array, key: Array, n: int):
        def one(carry, k):
            vae, state = carry
            k_rows, k_loss = jax.random.split(k)
            rows = data[jax.random.randint(k_rows, (self.settings.vae_batch_size,), 0, len(data))]
            (loss, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(vae, rows, k_loss)
            updates, state = self.optimiser.update(_arrays(grads), state)
            return (optax.apply_updates(vae, updates), state), {"loss": loss, **metrics}

        (vae, state), metrics = jax.lax.scan(one, (vae, state), jax.random.split(key, n))
        return vae, state, metrics


def _arrays(vae: Any) -> Any:
    return jax.tree.map(jnp.asarray, vae)
