"""Games whose optimum is known, over several seeds; tests that learn for minutes are marked slow."""

import sys
from pathlib import Path

import numpy as np
import pytest

from omg.cli import main
from tests import hidden_target
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


@pytest.mark.slow
def test_subgoals_of_the_partner_come_near_the_oracle_where_its_habit_alone_pays(tmp_path):
    """After 120,000 steps (both seats) of the game in tests/hidden_target.py; the base learner is far behind.

    Measured: oracle 0.91, OMG+ 0.84, LIAM 0.79, MeLIBA 0.74, base 0.55. With more steps the base learner catches up.
    """
    habits = list(hidden_target.HABIT_NAMES)
    env = tmp_path / "hidden_target.yaml"
    env.write_text("env: hidden_target\nbootstrap_at_limit: false\nenv_args: {}\n")
    vae, rules = tmp_path / "vae", f"--pool_rules=[{','.join(habits)}]"
    words = ["pretrain", "--config=ppo_omg_plus", f"--env-config={env}", "--pool=rules", rules, "--pool_test_rules=[]"]
    assert main([*words, "--vae_updates=1500", f"--run_dir={vae}"]) == 0
    partners = {"pool": "rules", "pool_rules": habits, "pool_test_rules": [], "opponents_per_collection": 8}
    run = partners | {"t_max": 60_000, "seeds": 3, "test_nepisode": 400, "batch_size_run": 64}
    base, oracle = (np.mean(learn(name, str(env), **run)) / 2 for name in ("ppo", "ppo_oracle"))
    meliba = np.mean(learn("ppo_meliba", str(env), **run)) / 2
    omg_plus = np.mean(learn("ppo_omg_plus", str(env), **run, vae_path=str(vae))) / 2
    assert oracle - omg_plus < 0.12
    assert omg_plus - base > 0.15
    assert meliba - base > 0.1
