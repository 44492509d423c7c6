"""Diagonal Gaussians, the VAE whose latent means are subgoals, and the CVAE that infers them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from omg.components.layers import MLP
from omg.utils.settings import setting

LOG_VAR = 8.0
"""Bound of the log variances."""


@dataclass(frozen=True)
class VAESize:
    """Shared by the settings of all components that contain a VAE."""

    vae_hidden_dim: int = setting(128, "hidden units of VAE and CVAE", above=0)


SPREAD = 0.05
"""Added to the variance of a latent before it is scaled."""


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
    """A VAE of states. Inputs are standardised: `shift` and `scale` are mean and deviation of the training data.

    The means and deviations of the latents are those of the same data.
    """

    encoder: MLP
    decoder: MLP
    shift: Float[Array, " s"]
    scale: Float[Array, " s"]
    latent_mean: Float[Array, " latent"]
    latent_deviation: Float[Array, " latent"]

    def __init__(self, size: int, hidden: int, latent: int, key: Array):
        k_encoder, k_decoder = jax.random.split(key)
        self.encoder = MLP((size, hidden, 2 * latent), k_encoder)
        self.decoder = MLP((latent, hidden, size), k_decoder)
        self.shift, self.scale = jnp.zeros(size), jnp.ones(size)
        self.latent_mean, self.latent_deviation = jnp.zeros(latent), jnp.ones(latent)

    def fitted_to(self, mean: Float[Array, " s"], deviation: Float[Array, " s"]) -> VAE:
        # A constant feature has deviation 0 and is left unscaled.
        scale = jnp.where(deviation > 1e-6, deviation, 1.0)
        return eqx.tree_at(lambda v: (v.shift, v.scale), self, (mean, scale))

    def with_latents_of(self, rows: Float[Array, "row s"]) -> VAE:
        """Remembers mean and deviation of the latents of these rows."""
        mu = self.encode(rows).mu
        return eqx.tree_at(lambda v: (v.latent_mean, v.latent_deviation), self, (mu.mean(0), mu.std(0)))

    def standard_latents(self, latents: Gaussian) -> Gaussian:
        """Latents with mean 0 and deviation 1 on the training data; those that the VAE does not use stay small."""
        variance = jax.lax.stop_gradient(self.latent_deviation) ** 2 + SPREAD
        mu = (latents.mu - jax.lax.stop_gradient(self.latent_mean)) / jnp.sqrt(variance)
        return Gaussian(mu, latents.log_var - jnp.log(variance))

    def own_latents(self, standard: Float[Array, "*rows latent"]) -> Float[Array, "*rows latent"]:
        """The latents that `standard_latents` has made standard."""
        variance = self.latent_deviation**2 + SPREAD
        return standard * jnp.sqrt(variance) + self.latent_mean

    def standard(self, s: Float[Array, "*rows s"]) -> Float[Array, "*rows s"]:
        return (s - jax.lax.stop_gradient(self.shift)) / jax.lax.stop_gradient(self.scale)

    def encode(self, s: Float[Array, "*rows s"]) -> Gaussian:
        """f_ψ(s) is the mean."""
        return gaussian_of(self.encoder(self.standard(s)))

    def decode(self, g: Float[Array, "*rows latent"]) -> Float[Array, "*rows s"]:
        return self.decoder(g) * jax.lax.stop_gradient(self.scale) + jax.lax.stop_gradient(self.shift)

    def losses(self, s: Float[Array, "*rows s"], key: Array) -> tuple[Float[Array, "*rows"], Float[Array, "*rows"]]:
        """Squared error of the reconstruction (standardised, summed over features), and KL to the unit Gaussian."""
        q = self.encode(s)
        error = self.decoder(q.sample(key)) - self.standard(s)
        return (error**2).sum(-1), kl(q, unit_gaussian(q))


class CVAE(eqx.Module):
    """The posterior over a subgoal given the condition c_t, and a decoder from (g, c_t) to the state."""

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
