"""Monte-Carlo tree search for many roots at once, with MuZero's PUCT selection as in mctx, and with chance.

What the others do is drawn anew at every visit of a node, so that the search cannot count on a lucky draw. An action
has several children, one for each of the draws that were met; its value is the mean over all of its visits.

mctx carries whole trees through its loops over depth, which dominates the cost on a CPU. Here a simulation touches
only the nodes on its path. Where nothing is drawn, the tests compare the two implementations visit by visit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from omg.components.action_selectors import UNAVAILABLE

PUCT_BASE = 19652.0
NOISE, NOISE_ALPHA = 0.25, 0.3
"""Weight and concentration of the Dirichlet noise that is mixed into a root's prior while learning."""
CHILDREN = 4
"""An action keeps this many children; a further draw replaces the least visited one."""


class Expansion(NamedTuple):
    """The result of expanding one action in every row."""

    reward: Float[Array, " row"]
    discount: Float[Array, " row"]
    prior_logits: Float[Array, "row action"]
    value: Float[Array, " row"]
    odds: Float[Array, "row other choice"] | None = None
    """The cumulative probabilities of what every other agent does next (`cumulative`); None: nothing is drawn."""


class SearchResult(NamedTuple):
    """Action values, visit counts and value of every root."""

    q: Float[Array, "row action"]
    visits: Float[Array, "row action"]
    value: Float[Array, " row"]


class Tree(NamedTuple):
    """Nodes are numbered in the order of their creation: simulation s creates node s + 1 in every row."""

    prior: Float[Array, "row node action"]
    child: Int[Array, "row node action child"]
    """-1: there is none."""
    drawn: Int[Array, "row node action child"]
    """What the others did on the way to a child, as one number."""
    edge: Float[Array, "row node action 2"]
    """Per action: visits, and the sum of the returns."""
    node: Float[Array, "row node 4"]
    """Per node: visits, mean value, and the reward and the discount on the way to it."""
    odds: Float[Array, "row node other choice"]
    embedding: Any
    """The caller's embedding of every node (a pytree)."""


VISITS, VALUE, REWARD, DISCOUNT = range(4)
RETURN = 1
"""Of an edge: the sum of the returns."""


def cumulative(probabilities: Float[Array, "*rows choice"]) -> Float[Array, "*rows choice"]:
    """For `Expansion.odds`. The last entry counts as 1."""
    return jnp.cumsum(probabilities, -1)


def search(
    root: Any,
    prior_logits: Float[Array, "row action"],
    value: Float[Array, " row"],
    expand: Callable[[Array, Int[Array, " row"], Int[Array, "row other"], Any], tuple[Expansion, Any]],
    simulations: int,
    key: Array,
    c_puct: float = 1.25,
    max_depth: int | None = None,
    try_all: bool = False,
    odds: Float[Array, "row other choice"] | None = None,
) -> SearchResult:
    """Every simulation adds one node to every row's tree. `expand(key, action, drawn, node)` is one step of the model.

    `odds` are those of the root. A path that reaches `max_depth`, or an action that ends the episode (discount 0),
    revisits the known child: its value is backed up once more and no node is added. With `try_all` every available
    action of a root is visited once before any is visited twice.
    """
    rows, actions = prior_logits.shape
    row, nodes = jnp.arange(rows), simulations + 1
    depth_limit = simulations if max_depth is None else min(max_depth, simulations)
    odds = jnp.zeros((rows, 0, 1)) if odds is None else odds
    others = odds.shape[1]
    children = (rows, nodes, actions, CHILDREN if others else 1)

    def allocate(x: Array) -> Array:
        return jnp.zeros((rows, nodes, *x.shape[1:]), x.dtype).at[:, 0].set(x)

    nothing = jnp.zeros(rows)
    tree = Tree(
        allocate(jax.nn.softmax(prior_logits, -1)),
        jnp.full(children, -1, jnp.int32),
        jnp.zeros(children, jnp.int32),
        jnp.zeros((rows, nodes, actions, 2)),
        allocate(jnp.stack([nothing + 1, value, nothing, nothing], -1)),
        allocate(odds),
        jax.tree.map(allocate, root),
    )

    def simulate(s: Int[Array, ""], tree: Tree) -> Tree:
        def put(every: Array, x: Array) -> Array:
            """Writes the new node's entry of an array."""
            return jax.lax.dynamic_update_index_in_dim(every, x.astype(every.dtype), s + 1, 1)

        k_dice, k_step = jax.random.split(jax.random.fold_in(key, s))
        dice = jax.random.uniform(k_dice, (rows, depth_limit, others))
        path, depth, drawn, known = _descend(tree, dice, c_puct, try_all)
        at = depth - 1
        parent, action = path[row, at, 0], path[row, at, 1]
        embedding = jax.tree.map(lambda x: x[row, parent], tree.embedding)
        step, after = expand(k_step, action, drawn, embedding)
        new = known < 0
        leaf = jnp.where(new, s + 1, known)
        # A new child takes an empty place, or that of the least visited one.
        places = tree.child[row, parent, action]
        used = jnp.where(places < 0, -1.0, tree.node[row[:, None], places, VISITS])
        place = jnp.where(new, used.argmin(-1), (places == known[:, None]).argmax(-1))
        # Where the path ended in a known node, the entry of the new node is never read.
        made = jnp.stack([nothing, step.value, step.reward, step.discount], -1)
        tree = tree._replace(
            prior=put(tree.prior, jax.nn.softmax(step.prior_logits, -1)),
            child=tree.child.at[row, parent, action, place].set(leaf),
            drawn=tree.drawn.at[row, parent, action, place].set(_number(drawn, tree.odds.shape[-1])),
            node=put(tree.node, made).at[row, leaf, VISITS].add(1),
            odds=tree.odds if step.odds is None else put(tree.odds, step.odds),
            embedding=jax.tree.map(put, tree.embedding, after),
        )
        return _back_up(tree, path, depth, leaf)

    tree = jax.lax.fori_loop(0, simulations, simulate, tree)
    edge = tree.edge[:, 0]
    return SearchResult(_mean_return(edge), edge[..., VISITS], tree.node[:, 0, VALUE])


def _descend(
    tree: Tree, dice: Float[Array, "row depth other"], c_puct: float, try_all: bool
) -> tuple[Int[Array, "row depth 2"], Int[Array, " row"], Int[Array, "row other"], Int[Array, " row"]]:
    """Follows the PUCT rule and the dice from every root to an action and a draw without a child.

    Returns the nodes and actions on the path, its length, the last draw, and the child there if it is known (or -1).
    """
    rows, depth_limit, others = dice.shape
    row = jnp.arange(rows)

    class Descent(NamedTuple):
        at: Array
        path: Array
        depth: Array
        drawn: Array
        child: Array
        going: Array

    def follow(descent: Descent) -> Descent:
        at, going = descent.at, descent.going
        prior, edge = tree.prior[row, at], tree.edge[row, at]
        action = _puct_action(prior, edge, tree.node[row, at], c_puct)
        if try_all:
            untried = (prior > 0) & (edge[..., VISITS] == 0)
            action = jnp.where((at == 0) & untried.any(-1), untried.argmax(-1), action)
        here = jnp.minimum(descent.depth, depth_limit - 1)
        step = jnp.where(going[:, None], jnp.stack([at, action], -1), descent.path[row, here])
        path = descent.path.at[row, here].set(step)
        # The last choice needs no bound of its own: rounding could leave it below 1.
        drawn = (dice[row, here][..., None] >= tree.odds[row, at][..., :-1]).sum(-1)
        places = tree.child[row, at, action]
        met = (places >= 0) & (tree.drawn[row, at, action] == _number(drawn, tree.odds.shape[-1])[:, None])
        child = jnp.where(met.any(-1), jnp.take_along_axis(places, met.argmax(-1)[:, None], 1)[:, 0], -1)
        depth = descent.depth + going
        # An action that ends the episode is not followed further.
        ends = tree.node[row, child, DISCOUNT] == 0
        return Descent(
            jnp.where(going & (child >= 0), child, at),
            path,
            depth,
            jnp.where(going[:, None], drawn, descent.drawn),
            jnp.where(going, child, descent.child),
            going & (child >= 0) & ~ends & (depth < depth_limit),
        )

    nothing = jnp.zeros(rows, jnp.int32)
    path, drawn = jnp.zeros((rows, depth_limit, 2), jnp.int32), jnp.zeros((rows, others), jnp.int32)
    start = Descent(nothing, path, nothing, drawn, nothing, jnp.ones(rows, bool))
    end = jax.lax.while_loop(lambda descent: descent.going.any(), follow, start)
    return end.path, end.depth, end.drawn, end.child


def _number(drawn: Int[Array, "row other"], choices: int) -> Int[Array, " row"]:
    """What all others do, as one number. With very many agents two draws may share a number, and then a child."""
    weights = np.array([pow(choices, i, 1 << 31) for i in range(drawn.shape[-1])], np.int32)
    return (drawn * weights).sum(-1, dtype=jnp.int32)


def _mean_return(edge: Float[Array, "*rows action 2"]) -> Float[Array, "*rows action"]:
    return edge[..., RETURN] / jnp.maximum(edge[..., VISITS], 1)


def _puct_action(
    prior: Float[Array, "row action"], edge: Float[Array, "row action 2"], node: Float[Array, "row 4"], c_puct: float
) -> Int[Array, " row"]:
    """PUCT: value normalised over siblings, plus prior probability weighted against visit count."""
    visits = edge[..., VISITS]
    tried = visits > 0
    q = _mean_return(edge)
    here = node[:, VALUE, None]
    known = jnp.where(tried, q, here)
    low, high = jnp.minimum(known.min(-1, keepdims=True), here), jnp.maximum(known.max(-1, keepdims=True), here)
    normalised = (jnp.where(tried, q, low) - low) / jnp.maximum(high - low, 1e-8)
    total = node[:, VISITS, None]
    width = c_puct + jnp.log((total + PUCT_BASE + 1) / PUCT_BASE)
    score = normalised + width * jnp.sqrt(total) * prior / (visits + 1)
    return jnp.where(prior > 0, score, -jnp.inf).argmax(-1)


def _back_up(tree: Tree, path: Int[Array, "row depth 2"], depth: Int[Array, " row"], leaf: Int[Array, " row"]) -> Tree:
    """Backs the value of the leaf up to every node on the path."""
    row = jnp.arange(len(leaf))

    def backup(carry):
        d, edges, nodes, below, value = carry
        here: Bool[Array, " row"] = d < depth
        at, action = path[row, d, 0], path[row, d, 1]
        edge, node, child = edges[row, at, action], nodes[row, at], nodes[row, below]
        value = jnp.where(here, child[:, REWARD] + child[:, DISCOUNT] * value, value)
        visited = edge + jnp.stack([jnp.ones_like(value), value], -1)
        mean = (node[:, VALUE] * node[:, VISITS] + value) / (node[:, VISITS] + 1)
        updated = node.at[:, VISITS].add(1).at[:, VALUE].set(mean)
        edges = edges.at[row, at, action].set(jnp.where(here[:, None], visited, edge))
        nodes = nodes.at[row, at].set(jnp.where(here[:, None], updated, node))
        return d - 1, edges, nodes, jnp.where(here, at, below), value

    start = (depth.max() - 1, tree.edge, tree.node, leaf, tree.node[row, leaf, VALUE])
    _, edge, node, _, _ = jax.lax.while_loop(lambda carry: carry[0] >= 0, backup, start)
    return tree._replace(edge=edge, node=node)


def noisy(logits: Array, avail_actions: Array, key: Array) -> Array:
    """A root's prior logits mixed with Dirichlet noise."""
    noise = jax.random.dirichlet(key, jnp.full(logits.shape[-1], NOISE_ALPHA), logits.shape[:-1]) * avail_actions
    noise = noise / jnp.maximum(noise.sum(-1, keepdims=True), 1e-9)
    probabilities = (1 - NOISE) * jax.nn.softmax(logits, -1) + NOISE * noise
    return jnp.where(avail_actions, jnp.log(probabilities + 1e-9), UNAVAILABLE)
