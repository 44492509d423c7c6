"""Monte-Carlo tree search for many roots at once, with MuZero's PUCT selection as in mctx.

mctx carries whole trees through its loops over depth, which dominates the cost on a CPU. Here a simulation touches
only the nodes on its path. The tests compare the two implementations visit by visit.
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
"""Weight and concentration of the Dirichlet noise that is mixed into a root's prior while learning."""


class Expansion(NamedTuple):
    """The result of expanding one action in every row."""

    reward: Float[Array, " row"]
    discount: Float[Array, " row"]
    prior_logits: Float[Array, "row action"]
    value: Float[Array, " row"]


class SearchResult(NamedTuple):
    """Action values, visit counts and value of every root."""

    q: Float[Array, "row action"]
    visits: Float[Array, "row action"]
    value: Float[Array, " row"]


class Tree(NamedTuple):
    """Nodes are numbered in the order of their creation: simulation s creates node s + 1 in every row."""

    prior: Float[Array, "row node action"]
    child: Int[Array, "row node action"]
    edge: Float[Array, "row node action 4"]
    """Per action: visits, reward, discount, and the value of the child node."""
    node: Float[Array, "row node 2"]
    """Per node: visits and mean value."""
    embedding: Any
    """The caller's embedding of every node (a pytree)."""


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
) -> SearchResult:
    """Every simulation adds one node to every row's tree. `expand(key, action, node)` is one step of the model.

    A path that reaches `max_depth`, or an action that ends the episode (discount 0), revisits the known child: its
    value is backed up once more and no node is added. With `try_all` every available action of a root is visited once
    before any is visited twice.
    """
    rows, actions = prior_logits.shape
    row, nodes = jnp.arange(rows), simulations + 1
    depth_limit = simulations if max_depth is None else min(max_depth, simulations)

    def allocate(x: Array) -> Array:
        return jnp.zeros((rows, nodes, *x.shape[1:]), x.dtype).at[:, 0].set(x)

    tree = Tree(
        allocate(jax.nn.softmax(prior_logits, -1)),
        jnp.full((rows, nodes, actions), -1, jnp.int32),
        jnp.zeros((rows, nodes, actions, 4)),
        allocate(jnp.stack([jnp.ones(rows), value], -1)),
        jax.tree.map(allocate, root),
    )

    def simulate(s: Int[Array, ""], tree: Tree) -> Tree:
        def put(every: Array, x: Array) -> Array:
            """Writes the new node's entry of an array."""
            return jax.lax.dynamic_update_index_in_dim(every, x.astype(every.dtype), s + 1, 1)

        k = jax.random.fold_in(key, s)
        path, depth = _descend(tree, depth_limit, c_puct, try_all)
        at = depth - 1
        parent, action = path[row, at, 0], path[row, at, 1]
        embedding = jax.tree.map(lambda x: x[row, parent], tree.embedding)
        step, after = expand(k, action, embedding)
        known = tree.child[row, parent, action]
        new = known < 0
        leaf = jnp.where(new, s + 1, known)
        # Where the path ended in a known node, the entry of the new node is never read.
        tree = tree._replace(
            prior=put(tree.prior, jax.nn.softmax(step.prior_logits, -1)),
            child=tree.child.at[row, parent, action].set(leaf),
            embedding=jax.tree.map(put, tree.embedding, after),
            node=put(tree.node, jnp.zeros((rows, 2))),
        )
        old = tree.edge[row, parent, action]
        made = jnp.stack([old[:, VISITS], step.reward, step.discount, old[:, AHEAD]], -1)
        edge = tree.edge.at[row, parent, action].set(jnp.where(new[:, None], made, old))
        leaf_value = jnp.where(new, step.value, tree.node[row, leaf, 1])
        first = jnp.stack([tree.node[row, leaf, 0] + 1, leaf_value], -1)
        return _back_up(
            tree._replace(edge=edge, node=tree.node.at[row, leaf].set(first)), path, depth, leaf, leaf_value
        )

    tree = jax.lax.fori_loop(0, simulations, simulate, tree)
    edge = tree.edge[:, 0]
    return SearchResult(
        edge[..., REWARD] + edge[..., DISCOUNT] * edge[..., AHEAD], edge[..., VISITS], tree.node[:, 0, 1]
    )


def _descend(
    tree: Tree, depth_limit: int, c_puct: float, try_all: bool
) -> tuple[Int[Array, "row depth 2"], Int[Array, " row"]]:
    """Follows the PUCT rule from every root to an action without a child; returns the nodes and actions on the path."""
    rows = tree.child.shape[0]
    row = jnp.arange(rows)

    class Descent(NamedTuple):
        at: Array
        path: Array
        depth: Array
        going: Array

    def follow(descent: Descent) -> Descent:
        prior, edge = tree.prior[row, descent.at], tree.edge[row, descent.at]
        action = _puct_action(prior, edge, tree.node[row, descent.at], c_puct)
        if try_all:
            untried = (prior > 0) & (edge[..., VISITS] == 0)
            action = jnp.where((descent.at == 0) & untried.any(-1), untried.argmax(-1), action)
        here = jnp.minimum(descent.depth, depth_limit - 1)
        step = jnp.where(descent.going[:, None], jnp.stack([descent.at, action], -1), descent.path[row, here])
        path = descent.path.at[row, here].set(step)
        depth = descent.depth + descent.going
        child = tree.child[row, descent.at, action]
        # An action that ends the episode is not followed further.
        ends = tree.edge[row, descent.at, action, DISCOUNT] == 0
        going = descent.going & (child >= 0) & ~ends & (depth < depth_limit)
        return Descent(jnp.where(going, child, descent.at), path, depth, going)

    nothing = jnp.zeros(rows, jnp.int32)
    start = Descent(nothing, jnp.zeros((rows, depth_limit, 2), jnp.int32), nothing, jnp.ones(rows, bool))
    descent = jax.lax.while_loop(lambda descent: descent.going.any(), follow, start)
    return descent.path, descent.depth


def _puct_action(
    prior: Float[Array, "row action"], edge: Float[Array, "row action 4"], node: Float[Array, "row 2"], c_puct: float
) -> Int[Array, " row"]:
    """PUCT: value normalised over siblings, plus prior probability weighted against visit count."""
    visits = edge[..., VISITS]
    tried = visits > 0
    q = edge[..., REWARD] + edge[..., DISCOUNT] * edge[..., AHEAD]
    here = node[:, 1:]
    known = jnp.where(tried, q, here)
    low, high = jnp.minimum(known.min(-1, keepdims=True), here), jnp.maximum(known.max(-1, keepdims=True), here)
    normalised = (jnp.where(tried, q, low) - low) / jnp.maximum(high - low, 1e-8)
    total = node[:, :1]
    width = c_puct + jnp.log((total + PUCT_BASE + 1) / PUCT_BASE)
    score = normalised + width * jnp.sqrt(total) * prior / (visits + 1)
    return jnp.where(prior > 0, score, -jnp.inf).argmax(-1)


def _back_up(
    tree: Tree, path: Int[Array, "row depth 2"], depth: Int[Array, " row"], leaf: Array, value: Float[Array, " row"]
) -> Tree:
    """Backs the value of the leaf up to every node on the path."""
    row = jnp.arange(len(value))

    def backup(carry):
        d, edges, nodes, below, value = carry
        here: Bool[Array, " row"] = d < depth
        at, action = path[row, d, 0], path[row, d, 1]
        edge, node = edges[row, at, action], nodes[row, at]
        value = jnp.where(here, edge[:, REWARD] + edge[:, DISCOUNT] * value, value)
        mean = (node[:, 1] * node[:, 0] + value) / (node[:, 0] + 1)
        ahead = nodes[row, below, 1]
        updated = jnp.stack([edge[:, VISITS] + 1, edge[:, REWARD], edge[:, DISCOUNT], ahead], -1)
        edges = edges.at[row, at, action].set(jnp.where(here[:, None], updated, edge))
        nodes = nodes.at[row, at].set(jnp.where(here[:, None], jnp.stack([node[:, 0] + 1, mean], -1), node))
        return d - 1, edges, nodes, jnp.where(here, at, below), value

    start = (depth.max() - 1, tree.edge, tree.node, leaf, value)
    _, edge, node, _, _ = jax.lax.while_loop(lambda carry: carry[0] >= 0, backup, start)
    return tree._replace(edge=edge, node=node)


def noisy(logits: Array, avail_actions: Array, key: Array) -> Array:
    """A root's prior logits mixed with Dirichlet noise."""
    noise = jax.random.dirichlet(key, jnp.full(logits.shape[-1], NOISE_ALPHA), logits.shape[:-1]) * avail_actions
    noise = noise / jnp.maximum(noise.sum(-1, keepdims=True), 1e-9)
    probabilities = (1 - NOISE) * jax.nn.softmax(logits, -1) + NOISE * noise
    return jnp.where(avail_actions, jnp.log(probabilities + 1e-9), UNAVAILABLE)
