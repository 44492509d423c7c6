"""What on-policy learners share: fresh episodes cut into chunks, and several passes of minibatches over them.

One update cuts the episodes of a collection into equal chunks of at most `seq_len` steps, each starting from the
recurrent state the network had there while acting, and makes `epochs` passes over the chunks that hold any step. An
agent model is unrolled along chunks of about that length, too; its minibatches are whole episodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from omg.components.chunks import chop, later_starts
from omg.components.episode_buffer import EpisodeBatch, FocalBatch, all_agents, refine
from omg.controllers.basic_controller import BasicMAC
from omg.learners.base import Learner, LearnerSettings, LearnerState, Metrics, Params, clip_each
from omg.modules.am import Inferred, Judge, Seen
from omg.utils.settings import setting


@dataclass(frozen=True)
class OnPolicySettings(LearnerSettings):
    epochs: int = setting(4, "passes over the episodes of an update", above=0)
    minibatches: int = setting(1, "gradient steps per pass; fewer if episodes are short", above=0)
    seq_len: int = setting(20, "longest back-propagation through time, in steps", above=0)


class Rollout(NamedTuple):
    """What an update takes from the networks before it."""

    along: Any
    """A NamedTuple of arrays `[time, batch, seat, …]` with the field `filled`."""
    memory: Any
    """Recurrent states before every step, `[time, batch, seat, hidden]` each."""
    inferred: Inferred
    """The agent model along the episodes."""
    chosen: Any
    """The agent model's hindsight choice, if it makes one."""
    target: Params
    """The learner's state that gradients do not change, such as the statistics of returns."""


class Episodes(NamedTuple):
    """Whole episodes, on which agent models are trained."""

    batch: FocalBatch
    chosen: Any = None
    starts: Float[Array, "chunk batch seat hidden"] | None = None
    """The agent model's memories before all chunks but the first; None: it is unrolled along whole episodes."""

    def rows(self, ids: Int[Array, " row"]) -> Episodes:
        """Only these episodes."""
        batch = jax.tree.map(lambda x: x[ids], self.batch)
        starts = None if self.starts is None else self.starts[:, ids]
        return Episodes(batch, self.chosen and self.chosen.rows(ids), starts)


class OnPolicyLearner(Learner):
    """Subclasses define `prepare` and `chunk_loss`."""

    Settings: type[OnPolicySettings] = OnPolicySettings
    settings: OnPolicySettings
    on_policy = True
    can_be_focal = True
    mac: BasicMAC

    def __init__(self, *arguments: Any, **named: Any):
        super().__init__(*arguments, **named)
        self.descend = jax.jit(self._descend)
        """Under `jit`, so that the shapes of its results, which are needed first, come from the same trace."""

    @property
    def per_seat(self) -> bool:
        """Every seat has its own network: seats are kept apart in every statistic."""
        return self.mac.own_networks

    def target_of(self, params: Params) -> Params:
        return {}

    def clip(self) -> optax.GradientTransformation:
        """Every network by itself, and with one network per seat every seat's."""
        return clip_each(self.settings.grad_norm_clip)

    def prepare(
        self, params: Params, target: Params, batch: FocalBatch, t_env: Array, key: Array
    ) -> tuple[Rollout, Metrics]:
        raise NotImplementedError(f"{type(self).__name__} must define prepare")

    def chunk_loss(self, params: Params, along: Any, memory: Any, t_env: Array) -> tuple[Array, Metrics]:
        """The loss on chunks `[step, chunk, seat, …]` from the recurrent states at their start."""
        raise NotImplementedError(f"{type(self).__name__} must define chunk_loss")

    def gradient(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[Any, Metrics]:
        """All passes over a batch; the result is the new networks, the optimiser's state and the new `target`."""
        s, n = self.settings, self.spec.n_agents
        focal = refine(batch, n, self.mac.group) if self.focal else all_agents(batch, n)
        rollout, metrics = self.prepare(state.params, state.target, focal, t_env, key)
        chunks, starts = jax.lax.stop_gradient(chop(s.seq_len, s.minibatches, rollout.along, rollout.memory))
        filled = (chunks.filled > 0).any((0, 2))
        episodes = Episodes(focal, rollout.chosen, later_starts(rollout.inferred.memory, s.seq_len))
        size, rows = len(filled) // s.minibatches, focal.obs.shape[0]
        rows_each = -(-rows // s.minibatches)

        def epoch(carry: tuple[Params, Any], k: Array) -> tuple[tuple[Params, Any], Metrics]:
            if s.minibatches == 1:
                return self.descend(*carry, chunks, starts, episodes, t_env, k)
            k_chunks, k_rows, k = jax.random.split(k, 3)
            order = shuffled(filled, k_chunks)
            order_of_rows = jax.random.permutation(k_rows, jnp.arange(rows_each * s.minibatches) % rows)

            def minibatch(i: Array, carry: tuple[tuple[Params, Any], Metrics]):
                new, found = some(carry[0], dealt(order, i, number, size), i * rows_each, jax.random.fold_in(k, i))
                return new, jax.tree.map(jnp.add, carry[1], found)

            def some(carry: tuple[Params, Any], of_chunks: Array, first: Array | int, k: Array):
                """A gradient step on some of the chunks; the agent model's on some of the episodes."""
                of_rows = jax.lax.dynamic_slice_in_dim(order_of_rows, first, rows_each)
                data = (
                    jax.tree.map(lambda x: x[:, of_chunks], chunks),
                    jax.tree.map(lambda x: x[of_chunks], starts),
                    episodes.rows(of_rows),
                )
                return self.descend(*carry, *data, t_env, k)

            # The minibatches that would hold no step are left out.
            number = jnp.maximum(-(-filled.sum() // size), 1)
            shapes = jax.eval_shape(lambda: some(carry, order[:size], 0, k)[1])
            none = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
            carry, sums = jax.lax.fori_loop(0, number, minibatch, (carry, none))
            return carry, jax.tree.map(lambda x: x / number, sums)

        keys = jax.random.split(jax.random.fold_in(key, 1), s.epochs)
        (params, opt_state), found = jax.lax.scan(epoch, (state.params, state.opt_state), keys)
        return (params, opt_state, rollout.target), metrics | {name: value.mean() for name, value in found.items()}

    def _descend(
        self, params: Params, opt_state: Any, chunks: Any, starts: Any, episodes: Episodes, t_env: Array, key: Array
    ) -> tuple[tuple[Params, Any], Metrics]:
        """One gradient step."""
        (loss, found), grads = jax.value_and_grad(self.total_loss, has_aux=True)(
            params, chunks, starts, episodes, t_env, key
        )
        found = {"loss": loss, "grad_norm": optax.global_norm(grads), **found}
        return self.step(params, grads, opt_state, t_env), found

    def apply(self, state: LearnerState, found: Any, t_env: Array) -> LearnerState:
        params, opt_state, target = found
        return LearnerState(params, target, opt_state, state.updates + 1)

    def total_loss(
        self, params: Params, chunks: Any, starts: Any, episodes: Episodes, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        """The learner's own loss plus that of the agent model."""
        loss, metrics = self.chunk_loss(params, chunks, starts, t_env)
        seen = self.mac.seen(episodes.batch)
        inferred = self.mac.infer_all(params, seen, episodes.batch, episodes.starts)
        model_loss, found = self.mac.am.loss(params, seen, episodes.batch, inferred, episodes.chosen, key)
        return loss + model_loss, {**metrics, **found}


def hindsight(
    learner: Any, judge: Judge, target: Params, seen: Seen, batch: FocalBatch, inferred: Inferred, *rest: Array
):
    """The subgoals that OMG chooses in hindsight; None for other agent models. `rest` is the time and a key."""
    if "vae" not in learner.artifacts:
        return None
    return learner.mac.am.choose_subgoals(target["vae"], judge, seen, batch, inferred, *rest).chosen


def shuffled(filled: Bool[Array, " chunk"], key: Array) -> Int[Array, " chunk"]:
    """A random order of the chunks in which those without any step come last."""
    return jnp.argsort(jax.random.uniform(key, filled.shape) + ~filled)


def dealt(order: Int[Array, " chunk"], i: Array, number: Array, size: int) -> Int[Array, " size"]:
    """The i-th of `number` minibatches: every `number`-th chunk, so that all have equally many chunks with steps."""
    return order[i + number * jnp.arange(size)]
