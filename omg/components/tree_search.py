"""Monte-Carlo tree search for many roots at once: MuZero's selection, as mctx has it.

mctx carries whole trees through its loops over depth, which on a CPU costs more than everything else together. Here a
simulation touches only the nodes on its path. The tests hold the two against each other, visit by visit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE

PUCT_BASE = 19652.0
NOISE, NOISE_ALPHA = 0.25, 0.3
"""How much of a root's prior is chance while learning, and how uneven."""


class Expansion(NamedTuple):
    """What a step into the tree brings, for every row."""

    reward: Float[Array, " row"]
    discount: Float[Array, " row"]
    prior_logits: Float[Array, "row action"]
    value: Float[Array, " row"]


class Found(NamedTuple):
    """What a search came to at its roots."""

    q: Float[Array, "row action"]
    visits: Float[Array, "row action"]
    value: Float[Array, " row"]


class Tree(NamedTuple):
    """Nodes are numbered in the order they were made: simulation s makes node s + 1 in every row."""

    prior: Float[Array, "row node action"]
    child: Int[Array, "row node action"]
    edge: Float[Array, "row node action 4"]
    """Of every action: visits, reward, discount, and the value of where it leads."""
    node: Float[Array, "row node 2"]
    """Of every node: visits and mean value."""
    inside: Any
    """The caller's own description of every node."""


VISITS, REWARD, DISCOUNT, AHEAD = range(4)


def search(
    root: Any,
    prior_logits: Float[Array, "row action"],
    value: Float[Array, " row"],
    expand: Callable[[Array, Int[Array, " row"], Any], tuple[Expansion, Any]],
    simulations: int,
    key: Array,
    c_puct: float = 1.25,
    max_depth: int | None = None,
    try_all: bool = False,
) -> Found:
    """Every simulation adds one node to every row's tree. `expand(key, action, node)` is a step of the world.

    A path as long as `max_depth`, or one that leads to an end (a discount of 0), ends where it was before, and what it
    leads to is counted once more. `try_all`: before anything is tried twice at a root, everything is tried once.
    """
    rows, actions = prior_logits.shape
    row, nodes = jnp.arange(rows), simulations + 1
    deepest = simulations if max_depth is None else min(max_depth, simulations)

    def room(x: Array) -> Array:
        return jnp.zeros((rows, nodes, *x.shape[1:]), x.dtype).at[:, 0].set(x)

    tree = Tree(
        room(jax.nn.softmax(prior_logits, -1)),
        jnp.full((rows, nodes, actions), -1, jnp.int32),
        jnp.zeros((rows, nodes, actions, 4)),
        room(jnp.stack([jnp.ones(rows), value], -1)),
        jax.tree.map(room, root),
    )

    def simulate(s: Int[Array, ""], tree: Tree) -> Tree:
        def put(every: Array, x: Array) -> Array:
            """The new node's part of an array."""
            return jax.lax.dynamic_update_index_in_dim(every, x.astype(every.dtype), s + 1, 1)

        k = jax.random.fold_in(key, s)
        path, depth = _descend(tree, deepest, c_puct, try_all)
        at = depth - 1
        parent, action = path[row, at, 0], path[row, at, 1]
        inside = jax.tree.map(lambda x: x[row, parent], tree.inside)
        step, after = expand(k, action, inside)
        known = tree.child[row, parent, action]
        new = known < 0
        leaf = jnp.where(new, s + 1, known)
        # Where the path ended in a node that was there before, what is put into the new place is never looked at.
        tree = tree._replace(
            prior=put(tree.prior, jax.nn.softmax(step.prior_logits, -1)),
            child=tree.child.at[row, parent, action].set(leaf),
            inside=jax.tree.map(put, tree.inside, after),
            node=put(tree.node, jnp.zeros((rows, 2))),
        )
        old = tree.edge[row, parent, action]
        made = jnp.stack([old[:, VISITS], step.reward, step.discount, old[:, AHEAD]], -1)
        edge = tree.edge.at[row, parent, action].set(jnp.where(new[:, None], made, old))
        leaf_value = jnp.where(new, step.value, tree.node[row, leaf, 1])
        first = jnp.stack([tree.node[row, leaf, 0] + 1, leaf_value], -1)
        return _climb(tree._replace(edge=edge, node=tree.node.at[row, leaf].set(first)), path, depth, leaf, leaf_value)

    tree = jax.lax.fori_loop(0, simulations, simulate, tree)
    edge = tree.edge[:, 0]
    return Found(edge[..., REWARD] + edge[..., DISCOUNT] * edge[..., AHEAD], edge[..., VISITS], tree.node[:, 0, 1])


def _descend(
    tree: Tree, deepest: int, c_puct: float, try_all: bool
) -> tuple[Int[Array, "row depth 2"], Int[Array, " row"]]:
    """From every root along the most promising actions to one that was not tried: the nodes and actions on the way."""
    rows = tree.child.shape[0]
    row = jnp.arange(rows)

    class Way(NamedTuple):
        at: Array
        path: Array
        depth: Array
        going: Array

    def on(way: Way) -> Way:
        prior, edge = tree.prior[row, way.at], tree.edge[row, way.at]
        action = _most_promising(prior, edge, tree.node[row, way.at], c_puct)
        if try_all:
            untried = (prior > 0) & (edge[..., VISITS] == 0)
            action = jnp.where((way.at == 0) & untried.any(-1), untried.argmax(-1), action)
        here = jnp.minimum(way.depth, deepest - 1)
        step = jnp.where(way.going[:, None], jnp.stack([way.at, action], -1), way.path[row, here])
        path = way.path.at[row, here].set(step)
        depth = way.depth + way.going
        child = tree.child[row, way.at, action]
        # An action that is known to end everything leads no further.
        ends = tree.edge[row, way.at, action, DISCOUNT] == 0
        going = way.going & (child >= 0) & ~ends & (depth < deepest)
        return Way(jnp.where(going, child, way.at), path, depth, going)

    nothing = jnp.zeros(rows, jnp.int32)
    start = Way(nothing, jnp.zeros((rows, deepest, 2), jnp.int32), nothing, jnp.ones(rows, bool))
    way = jax.lax.while_loop(lambda way: way.going.any(), on, start)
    return way.path, way.depth


def _most_promising(
    prior: Float[Array, "row action"], edge: Float[Array, "row action 4"], node: Float[Array, "row 2"], c_puct: float
) -> Int[Array, " row"]:
    """PUCT: the value among the siblings', and how likely and how little tried an action is."""
    visits = edge[..., VISITS]
    tried = visits > 0
    q = edge[..., REWARD] + edge[..., DISCOUNT] * edge[..., AHEAD]
    here = node[:, 1:]
    known = jnp.where(tried, q, here)
    low, high = jnp.minimum(known.min(-1, keepdims=True), here), jnp.maximum(known.max(-1, keepdims=True), here)
    worth = (jnp.where(tried, q, low) - low) / jnp.maximum(high - low, 1e-8)
    seen = node[:, :1]
    width = c_puct + jnp.log((seen + PUCT_BASE + 1) / PUCT_BASE)
    score = worth + width * jnp.sqrt(seen) * prior / (visits + 1)
    return jnp.where(prior > 0, score, -jnp.inf).argmax(-1)


def _climb(
    tree: Tree, path: Int[Array, "row depth 2"], depth: Int[Array, " row"], leaf: Array, value: Float[Array, " row"]
) -> Tree:
    """What was found at the leaf, told to every node on the way back."""
    row = jnp.arange(len(value))

    def up(carry):
        d, edges, nodes, below, value = carry
        here: Bool[Array, " row"] = d < depth
        at, action = path[row, d, 0], path[row, d, 1]
        edge, node = edges[row, at, action], nodes[row, at]
        value = jnp.where(here, edge[:, REWARD] + edge[:, DISCOUNT] * value, value)
        mean = (node[:, 1] * node[:, 0] + value) / (node[:, 0] + 1)
        ahead = nodes[row, below, 1]
        told = jnp.stack([edge[:, VISITS] + 1, edge[:, REWARD], edge[:, DISCOUNT], ahead], -1)
        edges = edges.at[row, at, action].set(jnp.where(here[:, None], told, edge))
        nodes = nodes.at[row, at].set(jnp.where(here[:, None], jnp.stack([node[:, 0] + 1, mean], -1), node))
        return d - 1, edges, nodes, jnp.where(here, at, below), value

    start = (depth.max() - 1, tree.edge, tree.node, leaf, value)
    _, edge, node, _, _ = jax.lax.while_loop(lambda carry: carry[0] >= 0, up, start)
    return tree._replace(edge=edge, node=node)


def noisy(logits: Array, avail_actions: Array, key: Array) -> Array:
    """A root's prior with a part of chance, so that training searches differ."""
    lots = jax.random.dirichlet(key, jnp.full(logits.shape[-1], NOISE_ALPHA), logits.shape[:-1]) * avail_actions
    lots = lots / jnp.maximum(lots.sum(-1, keepdims=True), 1e-9)
    chances = (1 - NOISE) * jax.nn.softmax(logits, -1) + NOISE * lots
    return jnp.where(avail_actions, jnp.log(chances + 1e-9), UNAVAILABLE)
