"""What one command makes and another one finds: pools of opponents, VAEs of states, learned goals.

A pre-trained artifact is a checkpoint whose manifest holds a card: the environment, its settings and the sizes that the
artifact was made for. `find` returns the newest one with the card that an experiment needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from omg.config import env_label, env_words
from omg.envs.grid import GOAL_SIZE
from omg.envs.multiagentenv import Spec
from omg.modules.am import REGISTRY as am_REGISTRY
from omg.modules.am.omg_am import OMGAM, OMGSettings
from omg.modules.entities import Entities
from omg.modules.goal_sets import GoalSettings, GoalSpace
from omg.modules.intentions import IntentionSpace
from omg.modules.slot_goals import SlotSpace
from omg.modules.vae import VAE
from omg.opponents import scripted, zoo
from omg.opponents.pool import MANIFEST, Member, Pool, PoolSettings
from omg.opponents.run_pool import RunPool, is_run
from omg.utils import checkpoints
from omg.utils.settings import UserError, choose, fill

Card = dict[str, Any]
SCRIPTED = "rules"
"""`--pool=rules`: the environment's scripted policies, without any files."""


# --- pools


def pool_folder(config: Mapping[str, Any]) -> Path:
    """The folder of the pool that a run uses: the one it names, or the environment's own under the results."""
    named = config.get("pool")
    if zoo.in_zoo(named):
        return zoo.folder_of(str(named))
    return Path(str(named)) if named else Path(str(config["local_results_path"])) / "pools" / env_label(config)


def open_pool(config: Mapping[str, Any]) -> Pool:
    """The pool that `pool` names: a folder of a pool or a run, one of the zoo, or the scripted policies (`rules`)."""
    if config.get("pool") == SCRIPTED:
        return scripted_pool(config)
    folder = pool_folder(config)
    run = is_run(folder)
    if not run and not (folder / MANIFEST).exists():
        usual = Path("results") / "pools" / env_label(config)
        named = "" if folder == usual else f" --pool={folder}"
        raise UserError(f"there is no pool of opponents in {folder}. Make one: omg pool{named} {env_words(config)}")
    pool = RunPool(folder) if run else Pool.load(folder)
    pool.check_env(str(config["env"]), config.get("env_args") or {})
    return pool


def scripted_pool(config: Mapping[str, Any]) -> Pool:
    """The environment's scripted policies as a pool, split as `pool_rules` and `pool_test_rules` say."""
    name = scripted.name_of(config)
    train, test = scripted_split(name, fill(PoolSettings, config))
    if not train and not test:
        if own := scripted.REGISTRY.get(name):
            raise UserError(f"name scripted policies of {name}: --pool_rules=[…] of {', '.join(own)}.")
        known = ", ".join(scripted.REGISTRY)
        raise UserError(f"{name} has no scripted policies; {known} have some. Train a pool: omg pool.")
    members = [Member(policy, policy, "train") for policy in train]
    members += [Member(policy, policy, "non_homologue") for policy in test]
    return Pool(Path(SCRIPTED), str(config["env"]), dict(config.get("env_args") or {}), members)


def scripted_split(env: str, settings: PoolSettings) -> tuple[list[str], list[str]]:
    """The scripted policies to train with and the unseen ones: as asked for, or the environment's own split."""
    split, known = scripted.SPLITS.get(env), scripted.REGISTRY.get(env, {})
    train = settings.pool_rules if settings.pool_rules is not None else list(split.train if split else ())
    # Policies that are asked for explicitly on one side leave the other side's default.
    taken = set(settings.pool_rules or []) if settings.pool_test_rules is None else set()
    test = settings.pool_test_rules
    test = test if test is not None else [p for p in (split.test if split else ()) if p not in taken]
    if settings.pool_rules is None and settings.pool_test_rules is not None:
        train = [p for p in train if p not in settings.pool_test_rules]
    for policy in (*train, *test):
        choose(known, policy, f"scripted policy of {env}")
    if both := sorted(set(train) & set(test)):
        raise UserError(f"{both[0]} cannot both train and be unseen: name it in one place.")
    return list(train), list(test)


# --- pre-trained networks


class ArtifactType(NamedTuple):
    """How one type of artifact is described, built, stored and made."""

    folder: str
    path_key: str
    command: str
    card: Callable[[Spec, Mapping[str, Any]], Card]
    build: Callable[[Card, jax.Array], Any]


def _vae_card(spec: Spec, config: Mapping[str, Any]) -> Card:
    s = fill(OMGSettings, config)
    encoded = _model_of(config).encodes(spec, config)
    size = {"state": spec.state_size, "obs": spec.obs_size, "agents": len((*spec.agents_in_state, ())[0])}[encoded]
    sizes = {"size": size, "vae_latent_dim": s.vae_latent_dim, "vae_hidden_dim": s.vae_hidden_dim}
    return _env_of(config) | {"obs_is_state": s.obs_is_state, "encoded": encoded} | sizes


def _model_of(config: Mapping[str, Any]) -> type[OMGAM]:
    """The agent model that a VAE is for; OMG unless the configuration names another one with a VAE."""
    model = am_REGISTRY.get(str(config.get("am_model")), OMGAM)
    return model if issubclass(model, OMGAM) else OMGAM


def _goal_card(spec: Spec, config: Mapping[str, Any]) -> Card:
    s = fill(GoalSettings, config)
    if s.goal_form == "slots":
        return _env_of(config) | {"goal_form": s.goal_form, "size": Entities(spec).n}
    if s.goal_form == "intentions":
        sizes = {"size": Entities(spec).groups, "n_actions": spec.n_actions, "n_intentions": s.n_intentions}
        return _env_of(config) | {"goal_form": s.goal_form} | sizes
    return _env_of(config) | {
        "goal_form": s.goal_form,
        "size": spec.obs_size + 2,  # with time and reward
        "goal_latent_dim": s.goal_latent_dim,
        "vae_hidden_dim": s.vae_hidden_dim,
        "n_goal_clusters": s.n_goal_clusters,
    }


def _env_of(config: Mapping[str, Any]) -> Card:
    return {"env": config["env"], "env_args": dict(config.get("env_args") or {})}


def build_vae(card: Card, key: jax.Array) -> VAE:
    return VAE(card["size"], card["vae_hidden_dim"], card["vae_latent_dim"], key)


def build_goals(card: Card, key: jax.Array) -> GoalSpace | SlotSpace | IntentionSpace:
    if card["goal_form"] == "slots":
        return SlotSpace(jnp.zeros(card["size"], jnp.int32))
    if card["goal_form"] == "intentions":
        types = card["size"]
        return IntentionSpace(card["n_intentions"], GOAL_SIZE + types, types, card["n_actions"], key)
    vae = VAE(card["size"], card["vae_hidden_dim"], card["goal_latent_dim"], key)
    return GoalSpace(vae, jnp.zeros((card["n_goal_clusters"], card["goal_latent_dim"])))


TYPES = {
    "vae": ArtifactType("vaes", "vae_path", "iql_omg", _vae_card, build_vae),
    "goals": ArtifactType("goals", "goals_path", "hop_plus", _goal_card, build_goals),
}


def card_of(name: str, spec: Spec, config: Mapping[str, Any]) -> Card:
    """What an artifact must have been made for, to be of use to this configuration."""
    return TYPES[name].card(spec, config)


def home(name: str, config: Mapping[str, Any]) -> Path:
    return Path(str(config["local_results_path"])) / TYPES[name].folder


def find(
    name: str, spec: Spec, config: Mapping[str, Any], saved: checkpoints.Checkpoint | None = None
) -> VAE | GoalSpace | SlotSpace | IntentionSpace:
    """The artifact inside a saved model, the one at `vae_path`/`goals_path`, or the newest one that fits."""
    kind, wanted = TYPES[name], card_of(name, spec, config)
    if saved is not None and f"{name}.safetensors" in saved.manifest["files"]:
        return _from_model(name, saved, wanted)
    path = config.get(kind.path_key)
    if path:
        found = checkpoints.find(Path(str(path)))
        _check(name, found, wanted)
        return _load(name, found, wanted)
    folders = sorted(home(name, config).glob("*/checkpoints"), key=lambda p: p.stat().st_mtime, reverse=True)
    complete = (checkpoints.newest_whole(folder)[0] for folder in folders)
    newest = next((c for c in complete if c is not None and c.manifest.get(name) == wanted), None)
    if newest is None:
        raise UserError(
            f"{config['name']} needs pre-trained {name}, and {home(name, config)} has none that fits. Make it: "
            f"omg pretrain --config={_plus(wanted, kind)}{_changed(kind, config)} {env_words(config)}"
        )
    return _load(name, newest, wanted)


def _plus(wanted: Card, kind: ArtifactType) -> str:
    """The configuration whose VAE fits: OMG's, or OMG+'s."""
    return "iql_omg_plus" if wanted.get("encoded") == "agents" else kind.command


def _changed(kind: ArtifactType, config: Mapping[str, Any]) -> str:
    """Settings that differ from their defaults, as command-line options, so that what is made fits."""
    usual: dict[str, Any] = {"pool": None, "obs_is_state": False, "vae_latent_dim": 64, "vae_hidden_dim": 128}
    usual |= {"local_results_path": "results"}
    usual |= {
        f.name: f.default for f in fields(GoalSettings) if f.name.startswith(("goal_", "n_goal_", "n_intentions"))
    }
    return "".join(f" --{key}={config[key]}" for key, value in usual.items() if config.get(key, value) != value)


def _load(name: str, found: checkpoints.Checkpoint, card: Card) -> Any:
    like = jax.eval_shape(lambda key: TYPES[name].build(card, key), jax.random.key(0))
    return checkpoints.load(found, name, like)


def _from_model(name: str, saved: checkpoints.Checkpoint, card: Card) -> Any:
    """The artifact inside a model's checkpoint; it is the same for every seed."""
    seeds = len(saved.manifest["seeds"])
    like = jax.eval_shape(lambda key: TYPES[name].build(card, key), jax.random.key(0))
    if seeds > 1:
        like = jax.tree.map(lambda x: jax.ShapeDtypeStruct((seeds, *x.shape), x.dtype), like)
    found = checkpoints.load(saved, name, like)
    return found if seeds == 1 else jax.tree.map(lambda x: x[0], found)


def _check(name: str, found: checkpoints.Checkpoint, wanted: Card) -> None:
    card = found.manifest.get(name)
    if not isinstance(card, dict):
        raise UserError(f"{found.path} holds no {name}: omg pretrain --config={TYPES[name].command} makes it.")
    for key in wanted:
        old, new = card.get(key), wanted[key]
        if key == "env_args" and isinstance(old, dict):
            for argument in sorted({*old, *new}):
                if old.get(argument) != new.get(argument):
                    raise UserError(
                        f"{name} in {found.path} was made with env_args.{argument}={old.get(argument)}, this run has "
                        f"{new.get(argument)}."
                    )
        elif old != new:
            option = f": add --{key}={old}" if key not in ("env", "size", "encoded") else ""
            raise UserError(f"{name} in {found.path} was made with {key} {old}, this run has {new}{option}.")
