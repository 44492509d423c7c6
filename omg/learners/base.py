"""The base classes of learners: state, optimiser, one update, target networks, the files they save, and mixers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int

from omg.components.episode_buffer import EpisodeBatch
from omg.envs.multiagentenv import Spec
from omg.modules.agents import IDVRNNAgent
from omg.modules.mixers import REGISTRY as mixer_REGISTRY
from omg.utils.settings import T_MAX_HELP, ReturnSettings, UserError, choose, fill, setting

Params = dict[str, Any]
Metrics = dict[str, Array]


@dataclass(frozen=True)
class LearnerSettings(ReturnSettings):
    optimiser: Literal["rmsprop", "adam"] = setting("adam", "optimiser: rmsprop or adam")
    lr: float = setting(5e-4, "learning rate", above=0)
    lr_decay: bool = setting(True, "the learning rate falls linearly to zero over t_max")
    optim_alpha: float = setting(0.99, "RMSprop: decay of the squared gradients", low=0, high=1)
    optim_eps: float = setting(1e-5, "added to the denominator of the optimiser's step", above=0)
    grad_norm_clip: float = setting(10.0, "gradients are clipped to this norm", above=0)
    t_max: int = setting(200_000, T_MAX_HELP, above=0)


@dataclass(frozen=True)
class TargetSettings(LearnerSettings):
    target_update_interval: int = setting(
        200, "updates between two copies of the networks into the target networks", above=0
    )


class LearnerState(NamedTuple):
    """`params` and `target` hold networks, keyed by the names of their files."""

    params: Params
    target: Params
    opt_state: Any
    updates: Int[Array, ""]


class Learner:
    """Holds settings and shapes; the state is passed in and out. Subclasses define `init_params` and `loss`."""

    Settings: type[LearnerSettings] = LearnerSettings
    on_policy: ClassVar[bool] = False
    """It learns only from episodes of the current policy."""
    plans: ClassVar[bool] = False
    """It learns from searches: it needs a controller that `plans`."""
    can_be_team: ClassVar[bool] = True
    """It can train all seats of a team."""
    can_be_focal: ClassVar[bool] = False
    """It can train one agent with frozen partners, from equally many episodes in every seat."""
    with_partners: ClassVar[str | None] = None
    """The learner that takes its place for one agent with frozen partners; None: the same one, if it can."""

    def __init__(
        self,
        spec: Spec,
        mac: Any,
        config: Mapping[str, Any],
        focal: bool = False,
        artifacts: Mapping[str, Any] | None = None,
    ):
        """`artifacts` are the pre-trained networks that the controller needs, such as OMG's VAE."""
        self.spec = spec
        self.mac = mac
        self.settings = fill(self.Settings, config)
        self.focal = focal
        self.artifacts = {name: value for name, value in (artifacts or {}).items() if name in mac.needs}
        self.shared_reward = spec.game_type == "cooperative"
        """In a cooperative game an agent goes on earning the team's reward after its own death."""
        if self.plans != mac.plans:
            wants, has = ("", "no ") if self.plans else ("no ", "")
            raise UserError(
                f"{type(self).__name__} and {type(mac).__name__} do not go together: the learner needs {wants}searches "
                f"(mac=hop_mac), the controller makes {has}searches."
            )
        if mac.carried_size and not focal:
            raise UserError("carry_memory is for one agent with frozen partners: add --pool=… or leave it out.")
        if missing := [name for name in mac.needs if name not in self.artifacts]:
            raise UserError(f"{type(mac).__name__} needs pre-trained {missing[0]}: make it with omg pretrain.")

    @classmethod
    def settings_classes(cls, config: Mapping[str, Any]) -> list[type]:
        """The dataclasses of all settings that it and its networks read under this configuration."""
        return [cls.Settings]

    # --- state

    def init(self, key: Array) -> LearnerState:
        params = self.init_params(key)
        # The target networks are copies with buffers of their own, so that both can be donated to the compiled loop.
        frozen = jax.tree.map(jnp.asarray, self.artifacts)
        target = jax.tree.map(jnp.copy, {**self.target_of(params), **frozen})
        return LearnerState(params, target, self.init_optimiser(params), jnp.zeros((), jnp.int32))

    def init_params(self, key: Array) -> Params:
        return self.mac.init_params(key)

    def target_of(self, params: Params) -> Params:
        """The networks of which a target copy is kept."""
        return params

    def acting(self, state: LearnerState) -> Params:
        """The networks that the controller needs to act: all but mixer and critic."""
        return {name: network for name, network in state.params.items() if name not in ("mixer", "critic")}

    def files(self, state: LearnerState) -> dict[str, Any]:
        """What a checkpoint holds, one file each: networks, artifacts, optimiser, target networks."""
        artifacts = {name: state.target[name] for name in self.artifacts}
        return {**state.params, **artifacts, "opt": state.opt_state, "target": state.target}

    def with_files(self, state: LearnerState, files: Mapping[str, Any]) -> LearnerState:
        return state._replace(
            params={name: files[name] for name in state.params}, opt_state=files["opt"], target=files["target"]
        )

    # --- updates

    def loss(
        self, params: Params, target: Params, batch: EpisodeBatch, t_env: Array, key: Array
    ) -> tuple[Array, Metrics]:
        raise UserError(f"the learner {type(self).__name__} must define loss.")

    def train(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[LearnerState, Metrics]:
        """One update."""
        found, metrics = self.gradient(state, batch, t_env, key)
        return self.apply(state, found, t_env), metrics

    def gradient(self, state: LearnerState, batch: EpisodeBatch, t_env: Array, key: Array) -> tuple[Any, Metrics]:
        """The part of an update that depends on the batch; it is compiled once per length of a batch."""
        (loss, metrics), grads = jax.value_and_grad(self.loss, has_aux=True)(
            state.params, state.target, batch, t_env, key
        )
        return grads, {"loss": loss, "grad_norm": optax.global_norm(grads), **metrics}

    def apply(self, state: LearnerState, grads: Any, t_env: Array) -> LearnerState:
        """The rest of the update: the optimiser's step and the target networks."""
        params, opt_state = self.step(state.params, grads, state.opt_state, t_env)
        return self.refresh_target(LearnerState(params, state.target, opt_state, state.updates + 1))

    def step(
        self, params: Params, grads: Params, opt_state: Any, t_env: Array, lr: float | None = None
    ) -> tuple[Params, Any]:
        """One step of the optimiser, with another learning rate than `lr` if one is given.

        With an agent model `params` must be the dictionary of networks (`Controller.weighted`).
        """
        updates, opt_state = self.optimiser(lr).update(grads, opt_state, params)
        weighted = self.mac.weighted(updates, self.settings.lr if lr is None else lr)
        return optax.apply_updates(params, self.decayed(weighted, t_env)), opt_state

    def decayed(self, updates: Any, t_env: Array) -> Any:
        """The optimiser's step, which shrinks over the run (`lr_decay`)."""
        if not self.settings.lr_decay:
            return updates
        return jax.tree.map(lambda x: x * self.left(t_env), updates)

    def left(self, t_env: Array) -> Array:
        """The fraction of the run that is not over."""
        return 1 - jnp.clip(t_env / float(self.settings.t_max), 0.0, 1.0)

    def optimiser(self, lr: float | None = None) -> optax.GradientTransformation:
        return optax.chain(self.clip(), self.step_rule(lr))

    def clip(self) -> optax.GradientTransformation:
        """All networks together for a team. One agent with frozen partners: each network by itself."""
        largest = self.settings.grad_norm_clip
        return clip_each(largest) if self.focal else optax.clip_by_global_norm(largest)

    def step_rule(self, lr: float | None = None) -> optax.GradientTransformation:
        s = self.settings
        lr = s.lr if lr is None else lr
        if s.optimiser == "adam":
            return optax.adam(lr, eps=s.optim_eps)
        return optax.rmsprop(lr, decay=s.optim_alpha, eps=s.optim_eps, eps_in_sqrt=False)

    def init_optimiser(self, params: Params) -> Any:
        return self.optimiser().init(params)

    def refresh_target(self, state: LearnerState) -> LearnerState:
        """Copies the networks after every `target_update_interval` updates."""
        fresh = self.target_of(state.params)
        if not fresh:
            return state
        interval = self.settings.target_update_interval  # type: ignore[attr-defined]
        due = state.updates % interval == 0
        target = dict(state.target)
        for name, online in fresh.items():
            target[name] = jax.tree.map(lambda new, old: jnp.where(due, new, old), online, target[name])
        return state._replace(target=target)


def clip_each(largest: float) -> optax.GradientTransformation:
    """Clips the gradient of every network by itself, and with one network per seat that of every seat."""

    def update(grads: Params, state: Any, params: Any = None) -> tuple[Params, Any]:
        def clip(tree: Any) -> Any:
            factor = jnp.minimum(1.0, largest / jnp.maximum(optax.global_norm(tree), 1e-9))
            return jax.tree.map(lambda x: x * factor, tree)

        def clip_network(tree: Any) -> Any:
            return jax.vmap(clip)(tree) if isinstance(tree, IDVRNNAgent) else clip(tree)

        return {name: clip_network(tree) for name, tree in grads.items()}, state

    return optax.GradientTransformation(lambda params: optax.EmptyState(), update)


# --- mixers


@dataclass(frozen=True)
class MixerSettings:
    mixer: str | None = setting(None, "mixer of the agents' values: vdn, qmix or qtran; null: independent learners")


class MixingLearner(Learner):
    """Keeps the mixer among the networks under "mixer"; acting does not need it.

    It mixes the values of a whole team, or with frozen partners those of the group that learns together.
    """

    joint: ClassVar[bool] = False
    """It learns a joint value of all actions (qtran) instead of mixing the agents' values."""

    def __init__(self, spec: Spec, mac: Any, config: Mapping[str, Any], *arguments: Any, **named: Any):
        super().__init__(spec, mac, config, *arguments, **named)
        name = fill(MixerSettings, config).mixer
        if name == "qtran" and not self.joint:
            raise UserError(
                f"{type(self).__name__} has no loss for qtran: use mixer=vdn, mixer=qmix or --config=qtran."
            )
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
            mixed = replace(self.spec, n_agents=self.mixed)
            params["mixer"] = self.mixer_class(mixed, self.mixer_settings, k_mixer)
        return params

    @property
    def mixed(self) -> int:
        """How many agents' values are mixed."""
        return len(self.mac.group) if self.focal else self.spec.n_agents
