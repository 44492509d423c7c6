"""Games whose optimum is known, over several seeds; tests that learn for minutes are marked slow."""

import sys
from pathlib import Path

import numpy as np
import pytest

from tests.helpers import learn

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.learning import BUDGET, SEEDS, bounds, lower_bound

EXPLORE = {"epsilon_start": 1.0, "epsilon_finish": 1.0, "batch_size_run": 4, "seeds": 3}
QUICK = {"rnn_hidden_dim": 16, "optimiser": "adam", "lr": 0.005, "t_max": 4000, "test_nepisode": 4}


def test_qmix_finds_the_optimum_that_vdn_misses():
    """With full exploration on the two-step game: 8 for QMIX, 7 for VDN (Rashid et al., 2018)."""
    qmix = learn("qmix", "two_step", **EXPLORE, **QUICK)
    vdn = learn("vdn", "two_step", **EXPLORE, **(QUICK | {"t_max": 2500}))
    assert qmix == [8.0] * 3
    assert vdn == [7.0] * 3


@pytest.mark.slow
@pytest.mark.parametrize("env", sorted(BUDGET))
def test_every_learner_closes_half_the_gap_to_the_best_scripted_team(env):
    random, best = bounds(env)
    wanted = random + (best - random) / 2
    short = {}
    for name, budget in BUDGET[env].items():
        returns = learn(name, env, **(SEEDS | budget))
        print(f"{env} {name}: {np.mean(returns):.3f} {returns}")
        if lower_bound(returns) < wanted:
            short[name] = returns
    assert not short, f"wanted {wanted:.3f}"
