"""The terrain: rooms in which units can stand, gates between overlapping rooms, and shortest paths through gates."""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from omg.envs.battle.arms import FAR
from omg.envs.battle.maps import SIZE


class Corners(NamedTuple):
    """Which units have to take a detour (`around`), and the position they walk to first."""

    around: Bool[Array, "unit env"]
    x: Float[Array, "unit env"]
    y: Float[Array, "unit env"]


class Ground:
    """The rooms of a map. A map without rooms is open everywhere."""

    def __init__(self, rooms: np.ndarray):
        self.rooms = rooms
        self.paths = find_paths(rooms)

    @property
    def open(self) -> bool:
        return not len(self.rooms)

    def walkable(self, x: Array, y: Array, free: np.ndarray) -> Bool[Array, "unit env"]:
        """Whether each unit can stand at the position. Units that are `free` can also stand between rooms."""
        inside = (x >= 0) & (x <= SIZE) & (y >= 0) & (y <= SIZE)
        return inside if self.open else inside & (self.in_rooms(x, y).any(0) | free)

    def in_rooms(self, x: Array, y: Array) -> Bool[Array, "room unit env"]:
        """Which rooms contain each position."""
        left, bottom, right, top = (self.rooms[:, i, None, None] for i in range(4))
        return (x >= left) & (x <= right) & (y >= bottom) & (y <= top)

    def nearest_ground(self, x: Array, y: Array) -> tuple[Array, Array]:
        """The nearest position inside a room; the position itself if it is inside one."""
        left, bottom, right, top = (self.rooms[:, i, None, None] for i in range(4))
        in_x, in_y = jnp.clip(x, left, right), jnp.clip(y, bottom, top)
        best = ((in_x - x) ** 2 + (in_y - y) ** 2).argmin(0)[None]
        return jnp.take_along_axis(in_x, best, 0)[0], jnp.take_along_axis(in_y, best, 0)[0]

    def corners(self, x: Array, y: Array, to_x: Array, to_y: Array, free: np.ndarray) -> Corners | None:
        """For units whose destination is in another room: the gate on the shortest path."""
        if not len(self.paths.gates):
            return None
        here, there = self.in_rooms(x, y), self.in_rooms(*self.nearest_ground(to_x, to_y))
        around = ~(here & there).any(0) & here.any(0) & there.any(0) & ~free
        best, corner_x, corner_y = jnp.full(x.shape, FAR), x, y
        for g, (gx, gy) in enumerate(self.paths.gates):
            out = (here & self.paths.of_room[g][:, None, None]).any(0)
            rest = jnp.where(there, self.paths.cost[g][:, None, None], FAR).min(0)
            length = jnp.where(out, jnp.sqrt((x - gx) ** 2 + (y - gy) ** 2) + rest, FAR)
            better = length < best
            best = jnp.where(better, length, best)
            corner_x, corner_y = jnp.where(better, gx, corner_x), jnp.where(better, gy, corner_y)
        return Corners(around, corner_x, corner_y)


@dataclass(frozen=True)
class Paths:
    """Paths between rooms. A gate leads out of one room into another."""

    gates: np.ndarray
    """`[gate, 2]`: a point just inside the room that the gate leads to."""
    of_room: np.ndarray
    """`[gate, room]`: whether the gate leads out of the room."""
    cost: np.ndarray
    """`[gate, room]`: the length of the shortest path from the gate to the room."""


def find_paths(rooms: np.ndarray) -> Paths:
    """The gates between overlapping rooms, and the shortest paths from every gate to every room."""
    n = len(rooms)
    gates, sources, leads = [], [], []
    for a in range(n):
        for b in range(n):
            if a != b and (gate := _gate(rooms[a], rooms[b])) is not None:
                gates.append(gate)
                sources.append(a)
                leads.append(b)
    if not gates:
        return Paths(np.zeros((0, 2), np.float32), np.zeros((0, n), bool), np.zeros((0, n), np.float32))
    places = np.array(gates, np.float32)
    cost = np.full((len(gates), n), 1e6, np.float32)
    for room in range(n):
        # Dijkstra from the destination: from the gates that lead into the room back to the gates before them.
        queue = [(0.0, g) for g in range(len(gates)) if leads[g] == room]
        while queue:
            distance, g = heapq.heappop(queue)
            if distance >= cost[g, room]:
                continue
            cost[g, room] = distance
            for before in range(len(gates)):
                if leads[before] == sources[g]:
                    length = distance + float(np.hypot(*(places[g] - places[before])))
                    heapq.heappush(queue, (length, before))
    of_room = np.array(sources)[:, None] == np.arange(n)
    return Paths(places, of_room, cost)


def _gate(a: np.ndarray, b: np.ndarray) -> np.ndarray | None:
    """A point of room `b` just outside room `a`, next to the middle of their overlap; None if they do not overlap."""
    low, high = np.maximum(a[:2], b[:2]), np.minimum(a[2:], b[2:])
    if (high - low).min() < 0:
        return None
    middle = (low + high) / 2
    for axis in (0, 1):
        if b[2 + axis] > a[2 + axis] + 0.1:
            middle[axis] = min(a[2 + axis] + 0.7, (a[2 + axis] + b[2 + axis]) / 2)
            return middle
        if b[axis] < a[axis] - 0.1:
            middle[axis] = max(a[axis] - 0.7, (a[axis] + b[axis]) / 2)
            return middle
    return None
