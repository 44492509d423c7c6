"""Strategies of memory one for repeated games with two actions: what an agent does depends on the last round alone.

Action 0 cooperates, action 1 defects; with more than two agents, the others cooperated if all of them did. The code
`cddc_c` lists the actions after CC, CD, DC and DD (the own action first) and, behind the line, the first one.
"""

from __future__ import annotations

import itertools

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

COOPERATE, DEFECT = 0, 1
FIRST = 4
"""The column of a strategy's table for the first round; before it: after CC, CD, DC, DD."""
NAMED = {
    "always_cooperate": "cccc_c",
    "always_defect": "dddd_d",
    "tit_for_tat": "cdcd_c",
    "suspicious_tit_for_tat": "cdcd_d",
    "win_stay_lose_shift": "cddc_c",
    "alternate": "ddcc_c",
    "grim": "cddd_c",
}


def memory_one() -> dict[str, str]:
    """Name → code of all deterministic strategies of memory one that differ in play; those with a name come first."""
    found = dict(NAMED)
    for letters in itertools.product("cd", repeat=4):
        replies = "".join(letters)
        # A strategy that cooperates first and after every cooperation of its own never defects, and the reverse.
        constant = {"c": replies[:2] == "cc", "d": replies[2:] == "dd"}
        codes = [f"{replies}_{first}" for first in "cd" if not constant[first]]
        found |= {f"memory_one_{code}": code for code in codes if code not in NAMED.values()}
    return found


def table_of(code: str) -> np.ndarray:
    """A strategy's five actions: after CC, CD, DC and DD, and in the first round."""
    return np.array([DEFECT if letter == "d" else COOPERATE for letter in code.replace("_", "")])


def situation(last_actions: Int[Array, " agent"]) -> Int[Array, " agent"]:
    """Every agent's column in the table of a strategy; last actions of -1: it is the first round."""
    defected = last_actions != COOPERATE
    by_others = defected.sum() - defected > 0
    return jnp.where(last_actions < 0, FIRST, 2 * defected + by_others)
