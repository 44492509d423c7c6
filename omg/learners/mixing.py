"""What Q-learners of a team share: a mixer from the agents' values to the team's, if there is one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
from jaxtyping import Array

from omg.envs.multiagentenv import Spec
from omg.learners.base import Learner, LearnerState, Params
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.utils.settings import choose, fill, setting


@dataclass(frozen=True)
class MixerSettings:
    mixer: str | None = setting(None, "mixer of the agents' values: vdn, qmix or qtran; null: independent learners")


class MixingLearner(Learner):
    """Keeps the mixer among the networks under "mixer"; acting does not need it."""

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        name = fill(MixerSettings, config).mixer
        self.mixer_class = choose(mixer_REGISTRY, name, "mixer") if name else None
        self.mixer_settings = fill(self.mixer_class.Settings, config) if self.mixer_class else None

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        mixer = fill(MixerSettings, config).mixer
        return [cls.Settings, *([choose(mixer_REGISTRY, mixer, "mixer").Settings] if mixer else [])]

    def init_params(self, key: Array) -> Params:
        k_agent, k_mixer = jax.random.split(key)
        params = self.mac.init_params(k_agent)
        if self.mixer_class:
            params["mixer"] = self.mixer_class(self.spec, self.mixer_settings, k_mixer)
        return params

    def acting(self, state: LearnerState) -> Params:
        return {name: network for name, network in state.params.items() if name != "mixer"}
