"""A stand-in for Melting Pot and Shimmy with the same interface: to be imported before `melting_pot` is opened.

Two players see frames of 24 × 24 pixels (nine cells of eight by eight). A bright cell in the middle row is in one of
three columns; who takes the action with the number of its column gets 1.
"""

import sys
from types import ModuleType, SimpleNamespace

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete

CELL = 8


class MeltingPotCompatibilityV0:
    def __init__(self, substrate_name, render_mode=None, max_cycles=1000):
        self.substrate_name, self.max_cycles = substrate_name, max_cycles
        self.possible_agents = ["player_0", "player_1"]
        self.agents = list(self.possible_agents)
        self.state_space = Box(0, 255, (3 * CELL, 6 * CELL, 3), np.uint8)
        self.random = np.random.default_rng()

    def observation_space(self, agent):
        numbers = {name: Box(-np.inf, np.inf, (), np.float64) for name in ("COLLECTIVE_REWARD", "READY_TO_SHOOT")}
        return Dict({**numbers, "RGB": Box(0, 255, (3 * CELL, 3 * CELL, 3), np.uint8)})

    def action_space(self, agent):
        return Discrete(4)

    def state(self):
        return [{**seen, "WORLD.RGB": np.tile(seen["RGB"], (1, 2, 1))} for seen in self._observations().values()]

    def _observations(self):
        frame = np.full((3 * CELL, 3 * CELL, 3), 51, np.uint8)
        frame[CELL : 2 * CELL, self.column * CELL : (self.column + 1) * CELL, 0] = 255
        return {
            name: {"COLLECTIVE_REWARD": np.array(99.0), "READY_TO_SHOOT": np.array(float(i)), "RGB": frame}
            for i, name in enumerate(self.possible_agents)
        }

    def reset(self, seed=None, options=None):
        self.agents, self.t, self.column = list(self.possible_agents), 0, int(self.random.integers(3))
        return self._observations(), {name: {} for name in self.agents}

    def step(self, actions):
        rewards = {name: np.array(float(actions[name] == self.column)) for name in self.agents}
        self.t, self.column = self.t + 1, int(self.random.integers(3))
        playing, truncated = self.agents, self.t >= self.max_cycles
        self.agents = [] if truncated else playing
        ends = (dict.fromkeys(playing, False), dict.fromkeys(playing, truncated))
        return self._observations(), rewards, *ends, {name: {} for name in playing}

    def close(self):
        self.agents = []


for name, content in {
    "shimmy": {"MeltingPotCompatibilityV0": MeltingPotCompatibilityV0},
    "meltingpot": {"substrate": SimpleNamespace(SUBSTRATES=frozenset({"bright_cell", "coins"}))},
}.items():
    sys.modules[name] = ModuleType(name)
    vars(sys.modules[name]).update(content)
