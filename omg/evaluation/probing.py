"""Linear probes: what can be read from an agent's input, its memory and its agent model's embedding.

A probe is a multinomial logistic regression on single time steps. The partner's identity is read in other episodes
than those that the probe was fitted to; the others' next action and next goal are read with other partners.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int

from omg.components.episode_buffer import Field, FocalBatch, time_first
from omg.controllers.basic_controller import BasicMAC
from omg.evaluation.encounters import Encounter

WINDOW = 5
"""Steps of the history that a probe sees."""
SOURCES = ("input", f"last {WINDOW} inputs", "policy's memory", "embedding")
SAMPLES = 20_000
"""Time steps that a probe is fitted to and tested on, at most."""
UPDATES, RATE, DECAY = 300, 0.05, 1e-3
"""Of the fit: full-batch steps of Adam, their size, and the weight of the squared coefficients."""


class Samples(NamedTuple):
    """Single time steps of many episodes."""

    sources: dict[str, np.ndarray]
    """What is read from, `[sample, feature]` each."""
    targets: dict[str, np.ndarray]
    """What is read: classes `[sample, column]`; -1 where there is none."""
    member: np.ndarray
    episode: np.ndarray


class Reading(NamedTuple):
    """The accuracy of a probe, and of always naming the most frequent class."""

    accuracy: float
    most_frequent: float


class Elsewhere:
    """An agent model whose embedding is that of another episode, half of all episodes further."""

    def __init__(self, am: Any):
        self._am = am

    def __getattr__(self, name: str) -> Any:
        return getattr(self._am, name)

    def infer(self, params: Any, seen: Any, memory: Array) -> tuple[Array, Array]:
        embedding, memory = self._am.infer(params, seen, memory)
        return jnp.roll(embedding, len(embedding) // 2, axis=0), memory


def shuffled(mac: BasicMAC) -> BasicMAC:
    """The same agent, acting on embeddings of other episodes."""
    other = copy(mac)
    other.am = Elsewhere(mac.am)  # type: ignore[assignment]
    return other


class Probed(Encounter):
    """Episodes with every member of a group, as samples for probes."""

    def __init__(self, env: Any, focal: BasicMAC, group: Any, episodes: int):
        super().__init__(env, focal, group, episodes)
        if env.n_goals:
            self.runner.scheme = self.runner.scheme | {"env_reached": Field((), "int16", "agents")}
        self.recorded = jax.jit(self._record)

    def samples(self, agent: Any, key: Array) -> Samples:
        sources, targets, mask = jax.device_get(self.recorded(agent, self.group.policies, key))
        rows, seats = mask.shape[1:]
        # A row is one environment of one member, with the focal agent in each seat.
        member = np.broadcast_to(np.repeat(np.arange(self.group.size), self.envs)[:, None], (rows, seats))
        episode = np.broadcast_to(np.arange(rows)[:, None] % self.envs, (rows, seats))
        t, b, i = np.nonzero(mask > 0)
        if len(t) > SAMPLES:
            kept = np.sort(np.random.default_rng(0).choice(len(t), SAMPLES, replace=False))
            t, b, i = t[kept], b[kept], i[kept]
        found = {name: x[t, b, i] for name, x in targets.items()} | {"partner": member[b, i][:, None]}
        in_order = {name: sources[name][t, b, i] for name in SOURCES if name in sources}
        return Samples(in_order, found, member[b, i], episode[b, i])

    def _record(self, agent: Any, policies: Any, key: Array) -> tuple[dict[str, Array], dict[str, Array], Array]:
        batch, _, prior = self.episodes_of(agent, policies, key)
        focal = self._refined(batch, prior)
        seen = self.focal.seen(focal)
        embedding = self.focal.infer_all(agent, seen, focal).embedding
        memory = self.focal.unroll_on(agent["agent"], seen, embedding).hidden
        each = (seen.own, history(seen.own, WINDOW), memory, embedding)
        sources = {name: x for name, x in zip(SOURCES, each, strict=True) if x.shape[-1]}
        targets = {"next action": acting(focal)}
        if self.env.n_goals:
            n = self.env.spec.n_agents
            reached = jnp.moveaxis(batch["env_reached"].reshape(n, -1, *batch["env_reached"].shape[1:]), 0, 2)
            others = (np.arange(n)[:, None] + np.arange(1, n)) % n
            of_others = jnp.stack([reached[:, :, k][..., others[k]] for k in range(n)], 2)
            targets["next goal"] = next_reached(time_first(of_others), time_first(focal.filled))
        return sources, targets, time_first(focal.mask)


def history(own: Float[Array, "time *rows input"], window: int) -> Float[Array, "time *rows all"]:
    """The last inputs side by side; zeros before the first step."""
    back = [jnp.pad(own, ((k, 0), *((0, 0),) * (own.ndim - 1)))[: len(own)] for k in range(window)]
    return jnp.concatenate(back, -1)


def acting(batch: FocalBatch) -> Int[Array, "time batch seat other"]:
    """The others' actions at the same time step; -1 for agents that left."""
    return jnp.where(time_first(batch.others_alive), time_first(batch.others_actions), -1)


def next_reached(
    reached: Int[Array, "time batch seat other"], filled: Float[Array, "time batch seat"]
) -> Int[Array, "time batch seat other"]:
    """The goal that each other agent reaches next in its episode; -1 if none."""

    def step(later: Array, now: tuple[Array, Array]) -> tuple[Array, Array]:
        goal, there = now
        found = jnp.where((goal >= 0) & (there[..., None] > 0), goal, later)
        return found, found

    start = jnp.full(reached.shape[1:], -1, jnp.int32)
    return jax.lax.scan(step, start, (reached.astype(jnp.int32), filled), reverse=True)[1]


# --- the probes


def read_all(samples: Samples) -> dict[str, dict[str, Reading]]:
    """`[target][source]`: how well each target can be read from each source."""
    members, episodes = samples.member, samples.episode
    found: dict[str, dict[str, Reading]] = {}
    for target, classes in samples.targets.items():
        # With a single partner other episodes must do.
        by_episode = target == "partner" or members.max() == 0
        half = (episodes if by_episode else members) % 2 == 0
        found[target] = {name: read(x, classes, half) for name, x in samples.sources.items()}
    return found


def read(x: np.ndarray, classes: np.ndarray, half: np.ndarray) -> Reading:
    """Two probes, each fitted to one half of the samples and tested on the other."""
    n = int(classes.max()) + 1
    if n < 1 or half.all() or not half.any():
        return Reading(float("nan"), float("nan"))
    each = [_fit_and_test(jnp.asarray(x), jnp.asarray(classes), jnp.asarray(w), n) for w in (half, ~half)]
    counted = np.array([float(c) for _, _, c in each])
    weights = counted / max(counted.sum(), 1)
    return Reading(*(float(sum(w * float(e[k]) for w, e in zip(weights, each, strict=True))) for k in (0, 1)))


@partial(jax.jit, static_argnames="n")
def _fit_and_test(x: Array, classes: Array, fitted: Array, n: int) -> tuple[Array, Array, Array]:
    """Accuracy on the samples that were not fitted to, that of the most frequent class, and their number."""
    weight = fitted[:, None].astype(jnp.float32)
    mean = (x * weight).sum(0) / weight.sum()
    deviation = jnp.sqrt(((x - mean) ** 2 * weight).sum(0) / weight.sum())
    x = (x - mean) / jnp.where(deviation > 1e-6, deviation, 1.0)
    x = jnp.clip(jnp.concatenate([x, jnp.ones_like(x[:, :1])], -1), -10, 10)
    known = (classes >= 0).astype(jnp.float32)
    labels = jax.nn.one_hot(classes, n)

    def loss(w: Array) -> Array:
        logits = jnp.einsum("sf,fcn->scn", x, w)
        error = -(labels * jax.nn.log_softmax(logits, -1)).sum(-1) * known * weight
        return error.sum() / jnp.maximum((known * weight).sum(), 1) + DECAY * (w**2).sum()

    optimiser: Any = optax.adam(RATE)
    start = jnp.zeros((x.shape[1], classes.shape[1], n))

    def update(carry: tuple[Array, Any], _: None) -> tuple[tuple[Array, Any], None]:
        w, state = carry
        step, state = optimiser.update(jax.grad(loss)(w), state)
        return (optax.apply_updates(w, step), state), None

    (w, _), _ = jax.lax.scan(update, (start, optimiser.init(start)), None, length=UPDATES)
    tested = known * (1 - weight)
    total = jnp.maximum(tested.sum(), 1)
    right = (jnp.einsum("sf,fcn->scn", x, w).argmax(-1) == classes) * tested
    frequent = (labels * (known * weight)[..., None]).sum(0).argmax(-1)
    return right.sum() / total, ((classes == frequent) * tested).sum() / total, tested.sum()
