"""Settings: one default and one help text each, ranges, and keys that no chosen component reads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.build import build, component_settings, resolve
from omg.cli import main, parse
from omg.commands import OF_A_MODEL, VERBS, module_of
from omg.config import CONFIG_DIR, Command, load, read_yaml
from omg.controllers import HopMAC
from omg.utils.settings import UserError, as_yaml, options_of
from tests.conftest import play
from tests.helpers import configuration


def settings_classes():
    """Every dataclass of settings, those of the commands included."""
    classes = dict(component_settings())
    for verb in VERBS:
        classes |= {f"{verb}: {cls.__name__}": cls for cls in module_of(verb).settings(Command(verb))}
    return classes


def test_default_yaml_is_generated_from_the_dataclasses():
    path = CONFIG_DIR / "default.yaml"
    assert path.read_text() == as_yaml(component_settings()), "run: python -m omg.build"
    defaults = read_yaml(path)
    for owner, cls in component_settings().items():
        for option in options_of(cls):
            assert defaults[option["name"]] == option["default"], f"{owner}: {option['name']}"


def test_every_setting_has_one_default_and_one_help_text():
    declared: dict[str, tuple] = {}
    for owner, cls in settings_classes().items():
        for option in options_of(cls):
            assert option["help"], f"{owner}: {option['name']} has no help text"
            one = (option["default"], option["help"], option["values"])
            assert declared.setdefault(option["name"], one) == one, f"{owner}: {option['name']}"
    assert len(declared) > 80


def refused(*words):
    command = parse(list(words))
    with pytest.raises(UserError) as caught:
        resolve(load(command), command.typed_keys())
    return str(caught.value)


@pytest.mark.parametrize(
    ("words", "key", "owner"),
    [
        (["--config=iql", "--hop_beta=abc"], "hop_beta", "hop_mac"),
        (["--config=ppo", "--double_q=false"], "double_q", "q_learner"),
        (["--config=hop", "--target_update_interval=9"], "target_update_interval", "q_learner"),
        (["--config=iql", "--ppo_clip=0.1"], "ppo_clip", "ppo_learner"),
        (["--config=vdn", "--pool_rules=[slow]"], "pool_rules", "--pool=rules"),
        (["--config=vdn", "--vae_updates=3"], "vae_updates", "omg pretrain"),
        (["--config=iql", "--adapt_episodes=3"], "adapt_episodes", "omg adapt"),
        (["--config=vdn", "--hypernet_embed=3"], "hypernet_embed", "qmix"),
    ],
)
def test_a_setting_that_no_chosen_component_reads_is_refused_by_name(words, key, owner):
    said = refused(*words)
    assert said.startswith(f"{key} has no effect here")
    assert owner in said


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--lr=.nan", "lr is nan; it must be a finite number"),
        ("--lr=nan", "lr takes a number, not 'nan'"),
        ("--lr=.inf", "lr is inf; it must be a finite number"),
        ("--lr=0", "lr is 0.0; it must be above 0"),
        ("--gamma=5", "gamma is 5.0; it goes from 0 to 1"),
        ("--gamma=-0.1", "gamma is -0.1; it goes from 0 to 1"),
        ("--epsilon_start=2", "epsilon_start is 2.0; it goes from 0 to 1"),
        ("--batch_size=0", "batch_size is 0; it must be 1 or more"),
        ("--seeds=0", "seeds is 0; it must be 1 or more"),
        ("--seed=-1", "seed is -1; it goes from 0"),
        ("--t_max=2.5", "t_max takes a whole number, not 2.5"),
        ("--debug=3", "debug takes true or false, not 3"),
        ("--rnn_cell=gruu", "rnn_cell takes 'gru' or 'lstm', not 'gruu'"),
        ("--reward_scale=0", "reward_scale is 0.0; it must be above 0"),
    ],
)
def test_a_value_outside_its_range_is_refused_with_the_range(word, says):
    assert says in refused("--config=iql", word)


def test_values_of_yaml_files_are_checked_too(tmp_path):
    (tmp_path / "mine.yaml").write_text("gamma: 5\n")
    assert "gamma is 5" in refused("--config=iql", "with", str(tmp_path / "mine.yaml"))
    (tmp_path / "mine.yaml").write_text("hop_beta: 5\n")
    assert "hop_beta has no effect here" in refused("--config=iql", "with", str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_help_of_a_verb_shows_its_examples_and_settings(verb, capsys):
    assert main([verb, "--help"]) == 0
    shown = capsys.readouterr().out
    module = module_of(verb)
    assert module.EXAMPLES
    for example in module.EXAMPLES:
        assert f"  {example}\n" in shown
    names = {option["name"] for cls in module.settings(Command(verb)) for option in options_of(cls)}
    for name in set(OF_A_MODEL.get(verb, names)):
        assert name in names
        assert f"--{name}=" in shown


def test_help_shows_the_values_of_the_named_configuration(capsys):
    assert main(["train", "--config=ppo_omg", "--env-config=foraging", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--am_model=omg_am " in shown
    assert "--bootstrap_at_limit=false " in shown
    assert "The values are those of --config=ppo_omg --env-config=foraging" in shown


def test_help_with_an_algorithm_shows_the_settings_of_that_algorithm(capsys):
    assert main(["train", "--config=ppo_omg", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "--ppo_clip=" in shown
    assert "--subgoal_mode=" in shown
    assert "--double_q=" not in shown


HUNT = {"env_args__grid_size": 4, "env_args__hunters": 2, "env_args__hares": 2, "env_args__episode_limit": 6}


@pytest.mark.slow
def test_hop_honours_gamma_and_reward_scale():
    """One step ahead: q = reward_scale · r + γ · V(next state)."""
    small = {"planning": False, "goal_draws": 1, "hop_hidden_dim": 4}
    env = build(configuration("hop", "stag_hunt", **HUNT, **small)).env
    env_state, seen = jax.jit(jax.vmap(env.reset))(jax.random.split(jax.random.key(1), 8))
    seats = jnp.zeros((8, 1), jnp.int32)

    def values(**changes):
        mac = HopMAC(env, configuration("hop", "stag_hunt", **HUNT, **small, **changes))
        params = jax.jit(mac.init_params)(jax.random.key(0))
        belief = mac.init_memory(params, 8).belief
        return mac.planner.plan(params, seen, belief, jnp.int32(0), seats, env_state, jax.random.key(2), True).q

    reward, half, tripled = jax.jit(lambda: (
        values(gamma=0.0), values(gamma=0.5), values(gamma=1.0, reward_scale=3.0)
    ))()  # fmt: skip
    assert (reward > 0).any(), "some action catches a hare"
    assert (abs(half - reward) > 1e-4).any(), "the next state has a value"
    np.testing.assert_allclose(tripled - 3 * reward, 2 * (half - reward), rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_comas_critic_honours_the_optimiser(two_step):
    """The first step of Adam moves a weight by the learning rate; that of RMSprop by ten times as much."""
    batch, found = play(two_step, 8), {}
    for optimiser in ("adam", "rmsprop"):
        changes = {"optimiser": optimiser, "critic_steps": 1, "critic_lr": 0.01, "optim_eps": 1e-12}
        learner = build(configuration("coma", "two_step", rnn_hidden_dim=4, critic_hidden_dim=4, **changes)).learner
        state, key = jax.jit(learner.init)(jax.random.key(0)), jax.random.key(1)
        new = jax.jit(learner.train)(state, batch, jnp.int32(0), key)[0]
        steps = jax.tree.map(lambda a, b: np.abs(a - b).max(), state.params["critic"], new.params["critic"])
        found[optimiser] = max(jax.tree.leaves(steps))
    assert found["adam"] == pytest.approx(0.01, rel=1e-3)
    assert found["rmsprop"] == pytest.approx(0.1, rel=1e-3)
