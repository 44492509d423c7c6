"""Intentions learned from play (HOP+, `goal_form: intentions`): K ways to choose among entities, and how agents move.

An agent with intention z pursues entity e with probability P(e | s, z) = softmax(θ_z·φ(e, s)) and acts by π(a | e, s).
It keeps e until it reaches or loses it, or gives it up; then it chooses again. That is a hidden Markov model of its
actions. Nothing is labelled: the likelihood of recorded play is maximised, as EM does, and the filter that computes it
is the belief of HOP's `goal_memory: preferences`, with the learned θ_z as particles. Only the layout of observations is
needed.
"""

from __future__ import annotations

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components import preferences
from omg.components.action_selectors import UNAVAILABLE
from omg.components.episode_buffer import pick
from omg.components.layers import MLP
from omg.envs.multiagentenv import MultiAgentEnv, Spec
from omg.modules.entities import Entities
from omg.modules.slot_goals import SlotGoals, SlotSpace

HIDDEN = 32
SMOOTHING = 0.001
"""Weight of the uniform distribution in π(a | e, s)."""


class IntentionSpace(eqx.Module):
    """What was learned: the preferences θ_z, the network of π(a | e, s), and the logits of agents without a goal."""

    theta: Float[Array, "code feature"]
    move: MLP
    idle: Float[Array, " action"]

    def __init__(self, codes: int, entity_size: int, types: int, n_actions: int, key: Array):
        k_theta, k_move = jax.random.split(key)
        theta = 0.5 * jax.random.normal(k_theta, (codes, types + 1 + preferences.DISTANCES))
        # The last type is "none": no goal. It explains everything a little, so at first it is unlikely.
        self.theta = theta.at[:, types].set(-3.0)
        self.move = MLP((entity_size, HIDDEN, n_actions), k_move)
        self.idle = jnp.zeros(n_actions)

    @property
    def preferences(self) -> preferences.Preferences:
        """As particles of the same weight."""
        return preferences.Preferences(self.theta, jnp.full(len(self.theta), 1 / len(self.theta)))


def entity_goals(env: MultiAgentEnv) -> SlotGoals:
    """Every entity is a goal, and its type is the table of the layout that lists it."""
    return SlotGoals(env, SlotSpace(jnp.asarray(tables_of(env.spec))))


def tables_of(spec: Spec) -> Int[Array, " entity"]:
    return jnp.asarray(Entities(spec).in_group.argmax(1), jnp.int32)


class Play(NamedTuple):
    """Recorded episodes, time first; observations include the one after the last step."""

    obs: Float[Array, "time_and_end episode agent obs"]
    reward: Float[Array, "time episode agent"]
    playing: Bool[Array, "time episode agent"]
    actions: Int[Array, "time episode agent"]
    avail_actions: Bool[Array, "time episode agent action"]


class Filtered(NamedTuple):
    """Along time: the belief over intentions and goals after each action, log P(a_t | all before) and, for steps that
    reach an entity, log P(that it was the goal | all before, a_t).
    """

    belief: Float[Array, "time episode agent code goal"]
    of_actions: Float[Array, "time episode agent"]
    of_reached: Float[Array, "time episode agent"]


def filtered(space: IntentionSpace, goals: SlotGoals, play: Play, hazard: float) -> Filtered:
    """b(z, e) ∝ b(z, e)·π(a | e, s); an entity that was reached is likelier to have been the goal.

    An agent that reaches or loses e, or gives it up (`hazard`), chooses again by θ_z.
    """
    choice, is_open = choices(space, goals, play)
    reached = goals.entities_of.reached(play.obs[:-1], play.obs[1:], play.reward, play.playing)
    stays = is_open[1:, :, None] * (reached < 0)[..., None] * (1.0 - hazard)
    likely = likelihood(space, goals, play)
    hit = preferences.of_reaching(reached, is_open.shape[-1])
    weights = space.preferences.weights[:, None]

    def step(belief: Array, now: tuple[Array, ...]) -> tuple[Array, tuple[Array, Array, Array]]:
        of_goals, of_hit, stays, choice, acts = now
        acted, total = explained(belief, of_goals)
        ended, of_reached = explained(acted, of_hit)
        chosen = preferences.chosen_again(ended, stays, choice)
        record = (acted, acts * jnp.log(total), acts * jnp.log(of_reached))
        return jnp.where(acts[..., None, None], chosen, belief), record

    along = (likely, hit, stays, choice[1:], play.playing)
    return Filtered(*jax.lax.scan(step, weights * choice[0], along)[1])


def explained(
    belief: Float[Array, "*rows code goal"], likely: Float[Array, "*rows goal"]
) -> tuple[Float[Array, "*rows code goal"], Float[Array, "*rows"]]:
    """Bayes' rule, and the probability of what was observed."""
    joint = belief * likely[..., None, :]
    total = jnp.maximum(joint.sum((-2, -1)), 1e-30)
    return joint / total[..., None, None], total


def choices(
    space: IntentionSpace, goals: SlotGoals, play: Play
) -> tuple[Float[Array, "time_and_end episode agent code goal"], Bool[Array, "time_and_end episode goal"]]:
    """P(e | s, z) at every time step, "none" last, and which goals are open."""
    there = goals.entities_of.there(play.obs).any(2)
    is_open = jnp.concatenate([there, jnp.ones_like(there[..., :1])], -1)
    type_of = jnp.array([*goals.types, goals.n_types])
    playing = jnp.concatenate([play.playing, play.playing[-1:]])
    along_time = jax.vmap(lambda far, now, acting: preferences.describe(far, now, acting, type_of, goals.n_types + 1))
    phi = along_time(goals.distance(play.obs), there, playing)
    to_all = jnp.broadcast_to(is_open[:, :, None], phi.shape[:-1])
    return preferences.choices(space.theta, phi, to_all), is_open


def likelihood(space: IntentionSpace, goals: SlotGoals, play: Play) -> Float[Array, "time episode agent goal"]:
    """π(a | e, s) of the actions taken; the last goal is "none"."""
    towards = space.move(goals.features(play.obs[:-1]))
    logits = jnp.concatenate([towards, jnp.broadcast_to(space.idle, towards[..., :1, :].shape)], -2)
    avail = play.avail_actions[..., None, :]
    pi = jax.nn.softmax(jnp.where(avail, logits, UNAVAILABLE), -1)
    # No single action excludes a goal, and steps after the end of an episode say nothing.
    pi = (1 - SMOOTHING) * pi + SMOOTHING / jnp.maximum(avail.sum(-1, keepdims=True), 1)
    of_taken = pick(pi, jnp.broadcast_to(play.actions[..., None], pi.shape[:-1]))
    return jnp.where(play.playing[..., None], of_taken, 1.0)
