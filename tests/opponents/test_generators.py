"""Generated partners on a game with a known answer: two agents are paid if they choose the same action.

The first of the three actions pays 1, the others 0.7: whoever learns for itself chooses the first.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.cli import main
from omg.components.episode_buffer import EpisodeBatch
from omg.envs import make
from omg.opponents.generators import Generator, GeneratorSettings, Handover, HandoverMAC, Population, generate
from omg.opponents.pool import Pool
from omg.utils.settings import UserError

CONFIG = {
    "policy_model": "rnn", "rnn_hidden_dim": 8, "agent_output_type": "pi_logits", "action_selector": "multinomial",
    "test_greedy": False, "epsilon_start": 0.0, "epsilon_finish": 0.0, "batch_size_run": 48, "minibatches": 1,
    "lr": 0.02, "lr_decay": False, "t_max": 8000, "entropy_coef": 0.15, "gamma": 1.0, "layer_norm": False,
    "bootstrap_at_limit": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def meeting():
    return make("matrix_game", payoff=np.diag([1.0, 0.7, 0.7]).tolist())


def gap(returns):
    """Self-play minus cross-play."""
    same = np.eye(len(returns), dtype=bool)
    return returns[same].mean() - returns[~same].mean()


def crossplay(generator, networks):
    """The probability that two members meet, for every pair."""
    spec = generator.env.spec
    _, seen = generator.env.reset(jax.random.key(0))
    row = jax.tree.map(lambda x: x[None], seen)

    def policy(params):
        act = jax.vmap(lambda key: generator.mac.select_actions(
            params, row, generator.mac.init_memory(params, 1), jnp.int32(0), key, True)[0][0, 0])  # fmt: skip
        actions = act(jax.random.split(jax.random.key(1), 400))
        return jax.nn.one_hot(actions, spec.n_actions).mean(0)

    chosen = np.asarray(jax.jit(jax.vmap(policy))(networks))
    return chosen @ chosen.T


@pytest.mark.parametrize("name", ["comedi", "brdiv", "lbrdiv"])
@pytest.mark.slow
def test_generated_members_meet_only_their_own_partners(meeting, name):
    """Three members find three conventions."""
    generator = Generator(name, meeting, CONFIG, GeneratorSettings(pool_population=3, pool_cross_play=1.0))
    networks, returns = generate(generator, 1, 8000, lambda *_: None)
    assert np.diag(returns).min() > 0.6
    assert gap(returns) > 0.6
    found = crossplay(generator, networks)
    if name == "comedi":
        # Members play with each other; in the other two with best responses.
        assert np.diag(found).min() > 0.8
    assert found[~np.eye(3, dtype=bool)].max() < 0.3


@pytest.mark.slow
def test_without_the_weight_of_cross_play_all_members_learn_the_same(meeting):
    generator = Generator("brdiv", meeting, CONFIG, GeneratorSettings(pool_population=3, pool_cross_play=0.0))
    networks, returns = generate(generator, 1, 8000, lambda *_: None)
    assert abs(gap(returns)) < 0.1
    assert crossplay(generator, networks).min() > 0.8


def test_multipliers_rise_where_cross_play_is_within_the_margin(meeting):
    """By hand: self-play 2 and 1 (on average 1.5), margin 0.5."""
    generator = Generator("lbrdiv", meeting, CONFIG, GeneratorSettings(pool_population=2, pool_margin=0.5))
    returns = jnp.array([[2.0, 0.3], [1.2, 1.0]])
    own, theirs = generator.dual_step(returns, jnp.full((2, 2, 2), 0.5))
    np.testing.assert_allclose(own[0, 1], 0.5 + 0.05 * (0.5 - 1.7 / 1.5), rtol=1e-5)
    np.testing.assert_allclose(own[1, 0], 0.5 + 0.05 * (0.5 + 0.2 / 1.5), rtol=1e-5)
    np.testing.assert_allclose(theirs[0, 1], 0.5 + 0.05 * (0.5 - 0.7 / 1.5), rtol=1e-5)
    np.testing.assert_allclose(theirs[1, 0], 0.5 + 0.05 * (0.5 - 0.8 / 1.5), rtol=1e-5)
    multipliers = jnp.array([[[9.0, 0.2], [0.4, 9.0]], [[9.0, 0.1], [0.3, 9.0]]])
    weights = generator.weights(Population(None, None, returns, multipliers))
    # A member's self-play counts 1, plus its own multipliers and those of its best response.
    expected = np.array([[1 + 0.2 + 0.3, -0.3], [-0.7, 1 + 0.4 + 0.1]])
    np.testing.assert_allclose(weights, expected / 1.5, rtol=1e-5)


def test_the_episodes_of_best_responses_are_seen_from_their_seats(meeting):
    """Episodes 0 and 1 have the member in the first seat, 2 and 3 in the second."""
    generator = Generator("brdiv", meeting, CONFIG, GeneratorSettings(pool_population=2))
    seats = jnp.array([0, 0, 1, 1])[:, None]
    turned = generator._from_the_next_seat(EpisodeBatch({"agent_idx": seats, "number": jnp.arange(4)[:, None]}))
    np.testing.assert_array_equal(turned["agent_idx"], seats, err_msg="ordered by the seat of the best response")
    np.testing.assert_array_equal(turned["number"][:, 0], [2, 3, 0, 1])


def test_a_handover_acts_with_the_first_policy_until_its_step(meeting):
    generator = Generator("comedi", meeting, CONFIG, GeneratorSettings(pool_population=2))
    networks = jax.jit(generator.init)(jax.random.key(0)).members.params

    def always(action):
        """A network that chooses one action whatever it sees."""
        one = jax.tree.map(lambda x: x[0] * 0, networks["agent"])
        return {"agent": eqx.tree_at(lambda a: a.fc2.bias, one, 50.0 * jax.nn.one_hot(action, 3))}

    mac = HandoverMAC(generator.mac)
    params = Handover(always(2), always(1), jnp.int32(2))
    seen = jax.tree.map(lambda x: x[None], meeting.reset(jax.random.key(0))[1])
    memory, chosen = mac.init_memory(params, 1), []
    for _ in range(4):
        actions, memory = mac.select_actions(params, seen, memory, jnp.int32(0), jax.random.key(1), True)
        chosen.append(actions[0, 0])
        for policy in memory[:2]:
            np.testing.assert_array_equal(policy.last_actions, actions, err_msg="both know what was done")
    assert [int(a) for a in chosen] == [2, 2, 1, 1]


def test_a_generator_needs_two_agents_and_no_agent_model(meeting):
    with pytest.raises(UserError, match="leave am_model out"):
        Generator("brdiv", meeting, CONFIG | {"am_model": "liam_am"}, GeneratorSettings())
    with pytest.raises(UserError, match="at least two"):
        Generator("comedi", make("predator_prey", predators=1), CONFIG, GeneratorSettings())


@pytest.mark.slow
def test_a_pool_with_generated_members(tmp_path, capsys):
    """A generated population is in one split as a whole, and is kept when the command is repeated."""
    words = ["pool", "--env-config=prisoners_dilemma", "--pool_algs=[brdiv]", "--pool_test_algs=[]", "--t_max=300"]
    words += ["--pool_population=2", "--rnn_hidden_dim=8", "--batch_size_run=4", "--env_args.rounds=2"]
    words += [
        "--minibatches=1",
        "--epochs=1",
        "--pool_rules=[grim]",
        "--pool_test_rules=[tit_for_tat]",
        f"--pool={tmp_path / 'pool'}",
    ]
    assert main(words) == 0
    pool = Pool.load(tmp_path / "pool")
    scripted, generated = [(m.name, m.split) for m in pool.members[:2]], [(m.name, m.split) for m in pool.members[2:]]
    assert scripted == [("grim", "train"), ("tit_for_tat", "non_homologue")]
    assert generated == [("brdiv-1-300", "train"), ("brdiv-2-300", "train")]
    at = (tmp_path / "pool/members/brdiv-1-300.safetensors").stat().st_mtime_ns
    assert main(words) == 0
    assert (tmp_path / "pool/members/brdiv-1-300.safetensors").stat().st_mtime_ns == at
    assert main([*words, "--pool_cross_play=0.1"]) == 2
    assert "other settings (pool_cross_play)" in capsys.readouterr().err
