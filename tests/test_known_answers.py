"""Games whose optimum is known, over several seeds; tests that learn for minutes are marked slow."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import learn

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks import learning

# TD(λ) targets follow the random actions: with full exploration they would be the values of random play.
EXPLORE = {
    "td_lambda": 0.0,
    "epsilon_start": 1.0,
    "epsilon_finish": 1.0,
    "batch_size_run": 4,
    "updates_per_iteration": 1,
    "seeds": 3,
}
QUICK = {"rnn_hidden_dim": 16, "optimiser": "adam", "lr": 0.005, "t_max": 4000, "test_nepisode": 4}


def test_qmix_finds_the_optimum_that_vdn_misses():
    """With full exploration on the two-step game: 8 for QMIX, 7 for VDN (Rashid et al., 2018)."""
    qmix = learn("qmix", "two_step", **EXPLORE, **QUICK)
    vdn = learn("vdn", "two_step", **EXPLORE, **(QUICK | {"t_max": 2500}))
    assert qmix == [8.0] * 3
    assert vdn == [7.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("env", sorted(learning.GOAL))
@pytest.mark.parametrize("name", learning.LEARNERS)
def test_every_learner_reaches_the_goal_and_stays_there(name, env):
    halfway, end = learning.learn(name, env)
    assert np.mean(halfway) >= learning.GOAL[env], halfway
    assert np.mean(end) >= learning.GOAL[env], end
