"""Frames of Overcooked and the coin game carry what the layers carry, and are stored without loss."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from omg.components.episode_buffer import make_scheme
from omg.envs import make
from omg.envs.pixels import KITCHEN, ONION, OWN, SOUP, TILE, frame
from omg.opponents.scripted import name_of, rule_of
from omg.utils.settings import UserError
from tests.helpers import or_slow

SETTINGS = {"overcooked": {"layout": "cramped_room", "episode_limit": 60}, "coin_game": {}}


def play(env, steps, seed):
    """Observations of random play."""

    def step(state, key):
        k_action, k_step = jax.random.split(key)
        actions = jax.random.randint(k_action, (env.spec.n_agents,), 0, env.spec.n_actions)
        state, timestep = env.step(state, actions, k_step)
        return state, timestep.obs

    @jax.jit
    def episode(key):
        state, _ = env.reset(key)
        return jax.lax.scan(step, state, jax.random.split(key, steps))[1]

    return np.asarray(jax.vmap(episode)(jax.random.split(jax.random.key(seed), 16)))


@pytest.mark.parametrize("name", or_slow("coin_game", slow=["overcooked"]))
def test_what_differs_in_layers_differs_in_the_frame_and_conversely(name):
    layers, frames = (play(make(name, **SETTINGS[name], pixels=pixels), 60, 1) for pixels in (False, True))
    if name == "coin_game":
        layers = layers[..., :-1]  # no colour is in a frame: every player sees itself as OWN
    rows = [np.unique(x.reshape(-1, x.shape[-1]), axis=0, return_inverse=True)[1].ravel() for x in (layers, frames)]
    pairs = np.unique(np.stack(rows), axis=1)
    assert pairs.shape[1] == rows[0].max() + 1 == rows[1].max() + 1 > 100


def test_a_kitchen_by_hand():
    """The observing cook looks up and holds an onion; two onions are in the pot beside it."""
    layers = np.zeros((1, 2, 26), np.float32)
    layers[0, 0, [0, 2, 23]] = 1
    layers[0, 1, [10, 16]] = 1, 2
    seen = np.round(np.asarray(frame(jnp.array(layers), KITCHEN)) * 255)
    cook, pot = seen[:, :TILE], seen[:, TILE:]
    assert cook[1, 1].tolist() == [*ONION]
    assert cook[0, 1].tolist() == [20, 20, 20]
    assert cook[2, 2].tolist() == [*OWN]
    assert (pot[0] == ONION).all(-1).tolist() == [True, True, False]


def test_pots_by_hand():
    """Half of the cooking time is left; then the soup is done."""
    layers = np.zeros((1, 2, 26), np.float32)
    layers[0, 0, [10, 18, 20]] = 1, 3, 10
    layers[0, 1, [10, 18, 21]] = 1, 3, 1
    seen = np.round(np.asarray(frame(jnp.array(layers), KITCHEN)) * 255)
    cooking, done = seen[:, :TILE], seen[:, TILE:]
    assert (cooking[0] == ONION).all()
    assert (done[0] == ONION).all()
    assert cooking[2].tolist() == [[145, 60, 53]] * 3, "between the pot's colour and red"
    assert cooking[1, 1].tolist() == done[2, 0].tolist() == [60, 60, 66]
    assert done[1, 1].tolist() == [*SOUP]


def test_frames_are_stored_as_bytes_without_loss():
    env = make("coin_game", pixels=True)
    field = make_scheme(env.spec)[0]["obs"]
    obs = play(env, 20, 2)
    stored = np.round(obs / field.scale).astype(field.dtype)
    assert stored.dtype == np.uint8
    np.testing.assert_array_equal(stored.astype(np.float32) * np.float32(field.scale), obs)


def test_scripted_cooks_read_layers_only():
    assert rule_of(make("overcooked").spec, "onion")
    with pytest.raises(UserError, match="overcooked_pixels has no scripted policies"):
        rule_of(make("overcooked", pixels=True).spec, "onion")
    assert name_of({"env": "jaxmarl", "env_args": {"name": "overcooked", "pixels": True}}) == "overcooked_pixels"
    with pytest.raises(UserError, match="overcooked and coin_game have frames"):
        make("jaxmarl", name="switch_riddle", pixels=True)
