"""Gaussians, and the variational autoencoder of situations whose latent means are subgoals."""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.linear import MLP

LOG_VAR = 8.0
"""Logarithms of variances stay between plus and minus this."""


class Gaussian(NamedTuple):
    """Independent normal distributions along the last axis."""

    mu: Float[Array, "*rows latent"]
    log_var: Float[Array, "*rows latent"]

    def sample(self, key: Array) -> Float[Array, "*rows latent"]:
        return self.mu + jnp.exp(self.log_var / 2) * jax.random.normal(key, self.mu.shape)


def gaussian_of(flat: Float[Array, "*rows twice_latent"]) -> Gaussian:
    mu, log_var = jnp.split(flat, 2, -1)
    return Gaussian(mu, LOG_VAR * jnp.tanh(log_var / LOG_VAR))


def unit_gaussian(like: Gaussian) -> Gaussian:
    return Gaussian(jnp.zeros_like(like.mu), jnp.zeros_like(like.log_var))


def kl(q: Gaussian, p: Gaussian) -> Float[Array, "*rows"]:
    """KL(q ‖ p) = ½ Σ [log σ_p² - log σ_q² + (σ_q² + (μ_q - μ_p)²) / σ_p² - 1]."""
    ratio = jnp.exp(q.log_var - p.log_var) + (q.mu - p.mu) ** 2 * jnp.exp(-p.log_var)
    return 0.5 * (p.log_var - q.log_var + ratio - 1).sum(-1)


class VAE(eqx.Module):
    """Works on standardised numbers: `shift` and `scale` are the mean and deviation of what it was trained on."""

    encoder: MLP
    decoder: MLP
    shift: Float[Array, " s"]
    scale: Float[Array, " s"]

    def __init__(self, size: int, hidden: int, latent: int, key: Array):
        k_encoder, k_decoder = jax.random.split(key)
        self.encoder = MLP((size, hidden, 2 * latent), k_encoder)
        self.decoder = MLP((latent, hidden, size), k_decoder)
        self.shift, self.scale = jnp.zeros(size), jnp.ones(size)

    def fitted_to(self, mean: Float[Array, " s"], deviation: Float[Array, " s"]) -> VAE:
        # What never changes has no deviation, and need not be told apart.
        scale = jnp.where(deviation > 1e-6, deviation, 1.0)
        return eqx.tree_at(lambda v: (v.shift, v.scale), self, (mean, scale))

    def standard(self, s: Float[Array, "*rows s"]) -> Float[Array, "*rows s"]:
        return (s - jax.lax.stop_gradient(self.shift)) / jax.lax.stop_gradient(self.scale)

    def encode(self, s: Float[Array, "*rows s"]) -> Gaussian:
        """f_ψ(s) is the mean."""
        return gaussian_of(self.encoder(self.standard(s)))

    def decode(self, g: Float[Array, "*rows latent"]) -> Float[Array, "*rows s"]:
        return self.decoder(g) * jax.lax.stop_gradient(self.scale) + jax.lax.stop_gradient(self.shift)

    def losses(self, s: Float[Array, "*rows s"], key: Array) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Squared error of the reconstruction (standardised, summed over entries), and KL to the unit Gaussian."""
        q = self.encode(s)
        error = self.decoder(q.sample(key)) - self.standard(s)
        return (error**2).sum(-1), kl(q, unit_gaussian(q))


class CVAE(eqx.Module):
    """The posterior over a subgoal given a condition, and a decoder back to the situation."""

    encoder: MLP
    decoder: MLP

    def __init__(self, condition: int, hidden: int, latent: int, size: int, key: Array):
        k_encoder, k_decoder = jax.random.split(key)
        self.encoder = MLP((condition, hidden, 2 * latent), k_encoder)
        self.decoder = MLP((latent + condition, hidden, size), k_decoder)

    def posterior(self, condition: Float[Array, "*rows condition"]) -> Gaussian:
        return gaussian_of(self.encoder(condition))

    def decode(self, g: Float[Array, "*rows latent"], condition: Float[Array, "*rows condition"]) -> Array:
        return self.decoder(jnp.concatenate([g, condition], -1))
