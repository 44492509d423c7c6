"""Does the agent model learn? Its measures with unseen written rules while it trains among others, over 3 seeds.

`python benchmarks/modelling.py iql_omg t_max=250000 env_args.grid_size=12 …` prints a line every twelfth of the way:
action accuracy, or how often the inferred subgoal hits, beside the same for shuffled guesses.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from omg.controllers import RuleMAC
from omg.envs import make
from omg.envs.multiagentenv import Spec
from omg.evaluation.strangers import MODEL, Meeting
from omg.learners.am_learner import AMLearner, VAESettings
from omg.learners.subgoals import SubgoalSettings
from omg.opponents import REGISTRY, SPLITS
from omg.opponents.pool import Kind
from omg.parts import StandIns, build
from omg.pretraining import situations
from omg.utils import vaes
from omg.utils.settings import fill
from tests.helpers import configuration

DEFAULTS = {"seeds": 3, "batch_size_run": 8, "updates_per_iteration": 8, "length_buckets": 1, "buffer_size": 2000}
POINTS = 12


def rules(spec: Spec, names: tuple[str, ...]) -> Kind:
    made = [REGISTRY[spec.name][name](spec) for name in names]
    return Kind(RuleMAC(spec, *made), jnp.arange(len(names)), tuple(range(len(names))))


def follow(config: str, world: str = "foraging", **updates: Any) -> None:
    settings = configuration(config, world, **(DEFAULTS | {"test_nepisode": 8} | updates))
    env = make(world, **settings["env_args"])
    known, strangers = (rules(env.spec, names) for names in SPLITS[world])
    vae = None
    if settings["am_model"] == "omg_am":
        card, of_vae = vaes.card_of(env.spec, settings), fill(VAESettings, settings)
        data = jnp.asarray(situations(env, [known], of_vae.vae_episodes, card["obs_is_state"]))
        fresh = vaes.make(card, jax.random.key(0))
        vae = AMLearner(of_vae).train(fresh, data, jax.random.key(1), lambda done, metrics: None)
    parts = build(settings, StandIns([known], vae))
    meeting = Meeting(env, parts.mac, strangers, 60, vae, fill(SubgoalSettings, settings))

    state, episode, shown = parts.loop.init(), 0, 0
    per_call = max(1, parts.settings.t_max // parts.loop.steps_per_iteration // (4 * POINTS))
    while shown < POINTS:
        state, _ = parts.loop.run(state, episode, per_call)
        episode += per_call * parts.loop.collected
        steps = int(np.mean(np.asarray(state.t_env)))
        if steps < (shown + 1) * parts.settings.t_max / POINTS:
            continue
        shown += 1
        acting = parts.learner.acting(state.learner)
        met = [
            meeting.play(jax.tree.map(lambda x, i=i: x[i], acting), jax.random.key(i)) for i in range(len(parts.seeds))
        ]
        names = ["ep_length", *(name for name in MODEL if name in met[0][0].numbers)]
        means = {name: [np.mean([m.numbers[name] for m in seed]) for seed in met] for name in names}
        cells = [f"{name} {np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for name, v in means.items()]
        print(f"{steps:>8,} steps, {int(np.mean(np.asarray(state.learner.updates))):,} updates: " + ", ".join(cells))


if __name__ == "__main__":
    config, *words = sys.argv[1:] or ["iql_omg"]
    pairs = (word.split("=", 1) for word in words)
    follow(config, **{key.replace(".", "__"): yaml.safe_load(value) for key, value in pairs})
