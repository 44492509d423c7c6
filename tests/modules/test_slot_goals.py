"""Goals as pointers to entities: what is reached, against the environments' own account, and the types learned."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.controllers import HopMAC
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.modules.entities import Entities, beside
from omg.modules.slot_goals import SlotGoals, SlotSpace, learn_types
from omg.opponents import REGISTRY as SCRIPTED
from omg.runners import VectorRunner
from omg.utils.settings import UserError
from tests.helpers import or_slow

KEY = jax.random.key(0)
PLAYED = {
    "stag_hunt": ("always_stag", "always_hare", "nearest_prey"),
    "snowdrift": ("always_clear",),
    "foraging": ("nearest_food",),
}


@pytest.fixture(scope="module", params=or_slow("stag_hunt", "snowdrift", slow=["foraging"]))
def play(request):
    """An environment, and 32 episodes of each of its scripted policies: observations, rewards, who plays, goals."""
    env = make(request.param)
    episodes = []
    for name in PLAYED[request.param]:
        mac = ScriptedMAC(env.spec, SCRIPTED[env.spec.name][name](env.spec))

        def step(carry, key, mac=mac):
            state, seen, over = carry
            k_act, k_env = jax.random.split(key)
            actions, _ = mac.select_actions(None, seen, mac.init_memory(None, 32), 0, k_act, True)
            after, shown = jax.vmap(env.step)(state, actions, jax.random.split(k_env, 32))
            reached = jax.vmap(env.goals)(after).reached
            playing = seen.alive & ~over[:, None]
            record = (seen.obs, shown.reward, playing, jnp.where(playing, reached, -1), shown.obs)
            return (after, shown, over | shown.terminated), record

        state, seen = jax.vmap(env.reset)(jax.random.split(KEY, 32))
        keys = jax.random.split(KEY, env.spec.episode_limit)
        _, (obs, reward, playing, reached, last) = jax.jit(lambda *x, step=step: jax.lax.scan(step, *x))(
            (state, seen, jnp.zeros(32, bool)), keys
        )
        obs = jnp.concatenate([obs, last[-1:]])
        episodes.append([np.asarray(jnp.moveaxis(x, 0, 1)) for x in (obs, reward, playing, reached)])
    obs, reward, playing, reached = (np.concatenate(x) for x in zip(*episodes, strict=True))
    return env, obs.astype(np.float32), reward, playing, reached


def test_entities_are_the_goals_that_the_environment_would_name(play):
    env, obs, reward, playing, reached = play
    entities = Entities(env.spec)
    assert entities.n == env.n_goals
    np.testing.assert_allclose(
        entities.features(jnp.asarray(obs[:, 0])), env.goal_features(jnp.asarray(obs[:, 0]))[..., :6], atol=1e-6
    )
    found = entities.reached(*(jnp.asarray(x) for x in (obs[:, :-1], obs[:, 1:], reward, playing)))
    assert (reached >= 0).sum() > 30, "enough was reached"
    agree = np.asarray(found) == reached
    assert agree[reached >= 0].mean() > 0.97
    assert agree[playing].mean() > 0.99


@pytest.mark.parametrize("size", [5, 6, 7, 10, 12])
def test_neighbours_are_one_step_apart_on_every_board(size):
    """Cells are fractions of the board, which are rounded."""
    env = make("stag_hunt", grid_size=size, hunters=1, hares=1, stags=0)
    obs = np.zeros((size, 2, env.spec.obs_size), np.float32)
    row = np.arange(size, dtype=np.float32) * np.float32(1 / size)
    obs[:, 0, 0], obs[:, 0, 3], obs[:, 0, 5] = row, np.roll(row, -1), 1 / size
    obs[:, 1, 0], obs[:, 1, 3], obs[:, 1, 5] = row, np.roll(row, -2), 1 / size
    near = np.asarray(beside(Entities(env.spec).distance(jnp.asarray(obs))))[..., 0]
    assert near[:-1, 0].all()
    assert not near[:-2, 1].any(), "two steps away"


def test_types_are_what_it_pays_to_reach_something(play):
    """All of the information about the prey's type, on a hunt; one type where all entities are alike."""
    env, obs, reward, playing, _ = play
    space, summary = learn_types(env.spec, obs, reward, playing)
    assert summary["events"] > 30
    if env.spec.name == "stag_hunt":
        assert np.asarray(space.types).tolist() == [*env.goal_types]
    else:
        assert len(set(np.asarray(space.types).tolist())) == 1


@pytest.mark.parametrize("play", ["stag_hunt"], indirect=True)
def test_types_without_names_of_groups(play):
    """Hares and the stag in one table: what they pay tells them apart."""
    env, obs, reward, playing, _ = play
    (hunters, (_, (hares, width)), (_, (stags, _)), time) = env.spec.obs_layout
    spec = replace(env.spec, obs_layout=(hunters, ("prey", (hares + stags, width)), time))
    space, _ = learn_types(spec, obs, reward, playing)
    assert np.asarray(space.types).tolist() == [0] * hares + [1]


def test_play_in_which_nothing_is_reached_is_refused(play):
    env, obs, reward, playing, _ = play
    with pytest.raises(UserError, match="no agent reached an entity"):
        learn_types(env.spec, obs, 0 * reward, playing)
    with pytest.raises(UserError, match="use --goal_form=state_time_reward"):
        Entities(replace(env.spec, agents_in_obs=""))


def test_hop_with_slots_never_asks_the_environment_for_goals(monkeypatch):
    env = make("stag_hunt", grid_size=4, hunters=2, hares=2, stags=1, episode_limit=6)

    def refuse(*_):
        raise AssertionError("the environment names no goals to HOP+")

    for name in ("goals", "goal_features", "goal_distance"):
        monkeypatch.setattr(type(env), name, refuse)
    config = {"train_simulations": 4, "train_goal_draws": 1, "hop_hidden_dim": 8, "goal_memory": "preferences"}
    mac = HopMAC(env, config, SlotSpace(jnp.array([0, 0, 1])))
    assert isinstance(mac.models.goals, SlotGoals)
    scheme, groups = make_scheme(env.spec)
    runner = VectorRunner(env, mac, scheme | mac.scheme, groups, 8)
    params = jax.jit(mac.init_params)(KEY)
    played = jax.jit(lambda key: runner.play(params, jnp.int32(0), key, False))(KEY)
    belief = np.asarray(played.memory.belief)
    np.testing.assert_allclose(belief.sum(-1), 1, rtol=1e-5)
    reached = np.asarray(played.batch["reached"])
    caught = [(b, reached[b, t, i]) for b, t, i in np.argwhere(reached >= 0) if played.batch["filled"][b, t]]
    assert caught, "something was reached"
    assert not any(belief[b, :, g].any() for b, g in caught), "what was reached is no goal any more"
