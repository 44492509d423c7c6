"""Pre-trained VAEs on disk: each in a folder of its own that says which world and which input it is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from omg.config import env_words
from omg.envs.multiagentenv import Spec
from omg.modules.vae import VAE
from omg.utils import checkpoints
from omg.utils.settings import UserError

Card = dict[str, Any]


def card_of(spec: Spec, config: Mapping[str, Any]) -> Card:
    """What a VAE must be for, to be of use to this configuration."""
    by_state = bool(config["obs_is_state"])
    return {
        "world": spec.name,
        "env_args": dict(config.get("env_args") or {}),
        "obs_is_state": by_state,
        "size": spec.state_size if by_state else spec.obs_size,
        "latent": config["vae_latent_dim"],
        "hidden": config["vae_hidden_dim"],
    }


def make(card: Card, key: jax.Array) -> VAE:
    return VAE(card["size"], card["hidden"], card["latent"], key)


def home(config: Mapping[str, Any]) -> Path:
    return Path(str(config["local_results_path"])) / "vaes"


def find(spec: Spec, config: Mapping[str, Any], saved: checkpoints.Checkpoint | None = None) -> VAE:
    """The VAE that a saved model was trained with, the one at `vae_path`, or the newest that fits."""
    wanted = card_of(spec, config)
    if saved is not None and "vae.safetensors" in saved.manifest["files"]:
        return of_model(saved, wanted)
    if config.get("vae_path"):
        found = checkpoints.find(Path(str(config["vae_path"])))
        _check(found, wanted)
        return _load(found, wanted)
    folders = sorted(home(config).glob("*/checkpoints"), key=lambda p: p.stat().st_mtime, reverse=True)
    for folder in folders:
        found_, _ = checkpoints.newest_whole(folder)
        if found_ is not None and found_.manifest.get("vae") == wanted:
            return _load(found_, wanted)
    words: dict[str, Any] = {"pool": None, "obs_is_state": False, "vae_latent_dim": 64, "vae_hidden_dim": 128}
    words |= {"local_results_path": "results"}
    changed = "".join(f" --{key}={config[key]}" for key, usual in words.items() if config.get(key) != usual)
    raise UserError(
        f"{config['name']} needs a VAE of {spec.name}, and {home(config)} has none that fits. Make one: "
        f"omg pretrain --config=iql_omg{changed} {env_words(config)}"
    )


def of_model(saved: checkpoints.Checkpoint, card: Card) -> VAE:
    """The VAE inside a model's checkpoint; every seed has the same one."""
    seeds = len(saved.manifest["seeds"])
    keys = jax.random.split(jax.random.key(0), seeds)
    like = jax.eval_shape(jax.vmap(lambda k: make(card, k)) if seeds > 1 else lambda k: make(card, k[0]), keys)
    vae = checkpoints.load_part(saved, "vae", like)
    return vae if seeds == 1 else jax.tree.map(lambda x: x[0], vae)


def _load(found: checkpoints.Checkpoint, card: Card) -> VAE:
    return checkpoints.load_part(found, "vae", jax.eval_shape(lambda k: make(card, k), jax.random.key(0)))


def _check(found: checkpoints.Checkpoint, wanted: Card) -> None:
    card = found.manifest.get("vae")
    if not isinstance(card, dict):
        raise UserError(f"{found.path} is not a VAE: omg pretrain makes them.")

    def about(c: Card) -> str:
        return f"the {'state' if c['obs_is_state'] else 'observation'} ({c['size']} numbers)"

    if (card["obs_is_state"], card["size"]) != (wanted["obs_is_state"], wanted["size"]):
        raise UserError(f"the VAE in {found.path} is of {about(card)}, this run needs one of {about(wanted)}.")
    if card["world"] != wanted["world"]:
        raise UserError(f"the VAE in {found.path} is of {card['world']}, this run is of {wanted['world']}.")
    for key in sorted({*card["env_args"], *wanted["env_args"]}):
        old, new = card["env_args"].get(key), wanted["env_args"].get(key)
        if old != new:
            raise UserError(f"the VAE in {found.path} was made with env_args.{key}={old}, this run has {new}.")
    for key in ("latent", "hidden"):
        if card[key] != wanted[key]:
            name = f"vae_{key}_dim"
            raise UserError(
                f"the VAE in {found.path} has {name} {card[key]}, this run {wanted[key]}: add --{name}={card[key]}."
            )
