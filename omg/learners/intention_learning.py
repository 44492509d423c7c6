"""Pre-training of intentions on recorded play, and what they explain on boards that were not trained on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import masked_mean
from omg.learners.am_learner import VAESettings
from omg.learners.goal_learning import Trajectories
from omg.modules.intentions import IntentionSpace, Play, filtered
from omg.modules.slot_goals import SlotGoals
from omg.utils.settings import UserError

HELD_OUT = 5
"""Every fifth episode is kept for the measures."""
EPISODES = 32
"""Episodes of a gradient step."""


def split(played: Trajectories) -> tuple[Play, Play]:
    """The episodes to learn from, and the held-out ones."""

    def chosen(which: np.ndarray) -> Play:
        arrays = {name: jnp.asarray(np.moveaxis(x[which], 1, 0)) for name, x in played._asdict().items()}
        return Play(**arrays)._replace(obs=arrays["obs"].astype(jnp.float32), actions=arrays["actions"].astype(int))

    if len(played.obs) < HELD_OUT:
        raise UserError(
            f"{len(played.obs)} episodes are too few to learn intentions and to measure them: collect {HELD_OUT} or "
            "more (--vae_episodes)."
        )
    held_out = np.arange(len(played.obs)) % HELD_OUT == 0
    return chosen(~held_out), chosen(held_out)


def negative_log_likelihood(space: IntentionSpace, goals: SlotGoals, play: Play, hazard: float) -> Float[Array, ""]:
    """Per action, each predicted from the actions before it."""
    return -masked_mean(filtered(space, goals, play, hazard).of_actions, play.playing.astype(jnp.float32))


def loss(space: IntentionSpace, goals: SlotGoals, play: Play, hazard: float) -> Float[Array, ""]:
    """The same, and the entities that were reached."""
    found, acted = filtered(space, goals, play, hazard), play.playing.astype(jnp.float32)
    return -masked_mean(found.of_actions + found.of_reached, acted)


def learn(
    space: IntentionSpace,
    goals: SlotGoals,
    play: Play,
    hazard: float,
    s: VAESettings,
    key: Array,
    report: Callable[[int, dict[str, float]], None],
) -> IntentionSpace:
    """`vae_updates` gradient steps on the likelihood of some episodes each."""
    # Preferences must grow to several units, where a network's weights stay small.
    optimiser = optax.adam(10 * s.vae_lr)

    @jax.jit
    def some(space: Any, state: Any, play: Play, keys: Array) -> tuple[Any, Any, Array]:
        def one(carry: tuple[Any, Any], k: Array) -> tuple[tuple[Any, Any], Array]:
            space, state = carry
            ids = jax.random.randint(k, (EPISODES,), 0, play.playing.shape[1])
            sample = jax.tree.map(lambda x: x[:, ids], play)
            value, grads = jax.value_and_grad(loss)(space, goals, sample, hazard)
            step, state = optimiser.update(grads, state)
            return (optax.apply_updates(space, step), state), value

        (space, state), losses = jax.lax.scan(one, (space, state), keys)
        return space, state, losses.mean()

    state, done, stretch = optimiser.init(space), 0, max(1, s.vae_updates // 20)
    while done < s.vae_updates:
        keys = jax.random.split(jax.random.fold_in(key, done), min(stretch, s.vae_updates - done))
        space, state, value = some(space, state, play, keys)
        done += len(keys)
        report(done, {"loss": float(value)})
    return space


def measured(
    space: IntentionSpace,
    without: IntentionSpace,
    goals: SlotGoals,
    types: Int[np.ndarray, " entity"],
    play: Play,
    hazard: float,
) -> dict[str, float]:
    """What intentions explain in these episodes.

    `nll`, `nll_without`: the negative log-likelihood per action, and that of a model without goals, in which agents
    choose an entity anew at every step. `type_information`: how much of the entropy of the reached entities' types is
    explained by the likeliest goal given the agent's actions; beside it the same with the goals of other events.
    """
    found = {"nll": float(negative_log_likelihood(space, goals, play, hazard))}
    found["nll_without"] = float(negative_log_likelihood(without, goals, play, 1.0))
    reached = np.asarray(goals.entities_of.reached(play.obs[:-1], play.obs[1:], play.reward, play.playing))
    believed = np.asarray(filtered(space, goals, play, hazard).belief.sum(-2).argmax(-1))
    events = reached >= 0
    if events.any() and len(np.unique(types)) > 1:
        of_goal = np.append(types, types.max() + 1)
        guessed, true = of_goal[believed[events]], types[reached[events]]
        other = np.random.default_rng(0).permutation(guessed)
        found |= {"type_information": information(guessed, true), "shuffled": information(other, true)}
    return found


def information(codes: Int[np.ndarray, " event"], types: Int[np.ndarray, " event"]) -> float:
    """I(code; type) / H(type); 1 if there is one type only."""
    joint = np.zeros((codes.max() + 1, types.max() + 1))
    np.add.at(joint, (codes, types), 1 / len(codes))
    of_types, independent = joint.sum(0), joint.sum(0) * joint.sum(1, keepdims=True)
    entropy = -(of_types[of_types > 0] * np.log(of_types[of_types > 0])).sum()
    shared = (joint[joint > 0] * np.log(joint[joint > 0] / independent[joint > 0])).sum()
    return float(shared / entropy) if entropy > 0 else 1.0
