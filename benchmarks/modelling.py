"""Measures an agent model with held-out scripted policies while it trains with the training ones (3 seeds).

`python benchmarks/modelling.py iql_omg t_max=250000 env_args.grid_size=12 …` prints twelve lines over the training:
action accuracy, or the subgoal hit ratio and the same ratio for shuffled subgoals.
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

from omg.artifacts import build_vae, card_of
from omg.build import StandIns, build
from omg.commands.pretrain import states_of
from omg.controllers.scripted_controller import ScriptedMAC
from omg.envs import make
from omg.envs.multiagentenv import Spec
from omg.evaluation.encounters import MODEL, Encounter
from omg.learners.am_learner import AMLearner, VAESettings
from omg.opponents import REGISTRY, SPLITS
from omg.runners import PolicyGroup
from omg.utils.settings import fill
from tests.helpers import configuration

DEFAULTS = {"seeds": 3, "batch_size_run": 8, "updates_per_iteration": 8, "length_buckets": 1, "buffer_size": 2000}
POINTS = 12


def scripted(spec: Spec, names: tuple[str, ...]) -> PolicyGroup:
    made = [REGISTRY[spec.name][name](spec) for name in names]
    return PolicyGroup(ScriptedMAC(spec, *made), jnp.arange(len(names)), tuple(range(len(names))))


def follow(config: str, env_name: str = "foraging", **updates: Any) -> None:
    settings = configuration(config, env_name, **(DEFAULTS | {"test_nepisode": 8} | updates))
    env = make(env_name, **settings["env_args"])
    known, unseen = (scripted(env.spec, names) for names in SPLITS[env_name])
    artifacts = {}
    if settings["am_model"] == "omg_am":
        card, of_vae = card_of("vae", env.spec, settings), fill(VAESettings, settings)
        data = jnp.asarray(states_of(env, [known], of_vae.vae_episodes, card["encoded"]))
        fresh = build_vae(card, jax.random.key(0))
        artifacts["vae"] = AMLearner(of_vae).train(fresh, data, jax.random.key(1), lambda done, metrics: None)
    experiment = build(settings, StandIns([known], artifacts))
    encounter = Encounter(env, experiment.mac, unseen, 60, artifacts.get("vae"))

    state, episode, shown = experiment.loop.init(), 0, 0
    per_call = max(1, experiment.settings.t_max // experiment.loop.steps_per_iteration // (4 * POINTS))
    while shown < POINTS:
        state, _ = experiment.loop.run(state, episode, per_call)
        episode += per_call * experiment.loop.collected
        steps = int(np.mean(np.asarray(state.t_env)))
        if steps < (shown + 1) * experiment.settings.t_max / POINTS:
            continue
        shown += 1
        acting = experiment.learner.acting(state.learner)
        results = [
            encounter.play(jax.tree.map(lambda x, i=i: x[i], acting), jax.random.key(i))
            for i in range(experiment.settings.seeds)
        ]
        names = ["ep_length", *(name for name in MODEL if name in results[0][0].numbers)]
        means = {name: [np.mean([m.numbers[name] for m in seed]) for seed in results] for name in names}
        cells = [f"{name} {np.mean(v):.3f} ({min(v):.3f} to {max(v):.3f})" for name, v in means.items()]
        print(f"{steps:>8,} steps, {int(np.mean(np.asarray(state.learner.updates))):,} updates: " + ", ".join(cells))


if __name__ == "__main__":
    config, *words = sys.argv[1:] or ["iql_omg"]
    pairs = (word.split("=", 1) for word in words)
    follow(config, **{key.replace(".", "__"): yaml.safe_load(value) for key, value in pairs})
