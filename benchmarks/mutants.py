"""Mutation tests: changes one term of a loss, target, mask or belief update at a time and runs the tests that cover it.

`python benchmarks/mutants.py [--only=SUBSTRING] [--jobs=2]`

A mutant is killed if a test fails on it. The exit status is 1 if a mutant survives, if its text does not occur exactly
once in its file, or if its tests fail without it. `--only` selects mutants by their file, text or tests.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".pytest_cache" / "mutants"
TIMEOUT = 600
"""Seconds after which a test run counts as failed: a mutant may loop for ever."""


class Mutant(NamedTuple):
    """`text` occurs exactly once in `file` (relative to the package); with `replacement` in its place a test fails."""

    file: str
    text: str
    replacement: str
    tests: tuple[str, ...]


KNOWN = "learners/test_known_values.py"
BELIEFS = "components/test_beliefs.py"
SUBGOALS = "modules/test_subgoals.py"
FOCAL = "learners/test_focal_losses.py"
MODELS = "modules/test_agent_models.py"
SEARCH = "components/test_tree_search.py"
PREFERENCES = "components/test_preferences.py"
HOP = "controllers/test_hop.py"
HOP_BELIEFS = "controllers/test_hop_beliefs.py"
OTHER_MINDS = "learners/test_other_minds.py"
INTENTIONS = "modules/test_intentions.py"
SHAPING = "envs/test_shaping_game.py"


def _of(file: str, tests: str, *changes: tuple[str, str]) -> list[Mutant]:
    """Mutants of one file that the same test kills."""
    return [Mutant(file, text, replacement, (f"tests/{tests}",)) for text, replacement in changes]


MUTANTS: list[Mutant] = [
    # --- temporal differences: masks and ends
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_the_time_limit_ends_an_episode_only_without_bootstrapping",
        ("jnp.arange(len(terminated)) == episode_limit - 1", "jnp.arange(len(terminated)) == episode_limit - 2"),
        ("over = jnp.maximum(terminated, at_limit[:, None, None])", "over = terminated"),
        ("if not settings.bootstrap_at_limit:", "if True:"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_an_agents_death_ends_its_return_only_in_games_without_a_shared_reward",
        ("acted = filled * alive[:-1]", "acted = filled"),
        ("reward=settings.reward_scale * time_first(batch.reward)[:-1]", "reward=time_first(batch.reward)[:-1]"),
        ("ended=over if shared_reward else jnp.maximum(over, ~alive[1:])", "ended=over"),
        ("ended=over if shared_reward else jnp.maximum(over, ~alive[1:])", "ended=jnp.maximum(over, ~alive[1:])"),
        ("ended=over if shared_reward else jnp.maximum(over, ~alive[1:])", "ended=jnp.maximum(over, ~alive[:-1])"),
        ("counted=filled if shared_reward else acted", "counted=filled"),
        ("counted=filled if shared_reward else acted", "counted=acted"),
        ("steps.over[..., ::size], steps.filled", "steps.ended[..., ::size], steps.filled"),
        ("steps.over[..., ::size], steps.filled", "steps.over[..., ::size], steps.acted"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_actions_of_the_step_and_available_actions_before_and_after_it",
        ("avail_next=avail[1:]", "avail_next=avail[:-1]"),
        ("avail_actions=avail[:-1]", "avail_actions=avail[1:]"),
    ),
    # --- temporal differences: values, targets and the loss
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_with_double_q_the_online_network_chooses_and_the_target_network_values",
        ("jnp.where(avail_actions, q, UNAVAILABLE).argmax(-1)", "jnp.where(avail_actions, q, 0.0).argmax(-1)"),
        ("chooser = jax.lax.stop_gradient(online) if double_q else target", "chooser = target"),
        ("pick(target, best_action(chooser, avail_actions))", "pick(online, best_action(chooser, avail_actions))"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_one_step_targets_by_hand",
        ("stop_gradient(reward + gamma * (1 - ended) * next_value)", "stop_gradient(reward + gamma * next_value)"),
        (
            "stop_gradient(reward + gamma * (1 - ended) * next_value)",
            "stop_gradient(reward + (1 - ended) * next_value)",
        ),
        (
            "jax.lax.stop_gradient(reward + gamma * (1 - ended) * next_value)",
            "reward + gamma * (1 - ended) * next_value",
        ),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_lambda_targets_stop_at_the_last_step_of_an_episode",
        ("jnp.where(goes_on > 0, (1 - td_lambda) * value + td_lambda * later, value)", "value"),
        ("jnp.where(goes_on > 0, (1 - td_lambda) * value + td_lambda * later, value)", "later"),
        (
            "jnp.where(goes_on > 0, (1 - td_lambda) * value + td_lambda * later, value)",
            "(1 - td_lambda) * value + td_lambda * later",
        ),
        ("target = r + gamma * (1 - end) * following", "target = r + gamma * following"),
        ("target = r + gamma * (1 - end) * following", "target = r + (1 - end) * following"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_generalised_advantages_by_a_loop",
        ("(1 - td_lambda) * value + td_lambda * later", "td_lambda * value + (1 - td_lambda) * later"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_the_td_loss_is_the_mean_squared_error_over_the_steps_that_count",
        ("loss = masked_mean(error**2, mask)", "loss = (error**2).mean()"),
        ("loss = masked_mean(error**2, mask)", "loss = masked_mean(abs(error), mask)"),
    ),
    # --- episodes
    *_of(
        "components/episode_buffer.py",
        f"{KNOWN}::test_a_masked_mean_divides_by_the_number_of_entries_that_count",
        ("/ jnp.maximum(mask.sum(), 1.0)", "/ mask.size"),
        ("(x * mask).sum() /", "x.sum() /"),
    ),
    *_of(
        "components/episode_buffer.py",
        f"{KNOWN}::test_the_focal_agent_sits_in_every_seat_and_the_others_follow_it",
        (
            "(focal[..., None] + np.arange(1, n_agents)) % n_agents",
            "(focal[..., None] - np.arange(1, n_agents)) % n_agents",
        ),
        (
            "(np.arange(n_agents)[:, None] + np.arange(1, n_agents)) % n_agents",
            "(np.arange(n_agents)[:, None] + np.arange(n_agents - 1)) % n_agents",
        ),
    ),
    # --- groups that learn together
    *_of(
        "components/episode_buffer.py",
        "components/test_episode_buffer.py::test_every_agent_of_a_group_that_learns_together_has_a_column_of_its_own",
        (
            'batch["agent_idx"].astype(jnp.int32) + np.array(group)',
            'batch["agent_idx"].astype(jnp.int32) - np.array(group)',
        ),
        ("columns(chosen(x, focal % n_agents))", "columns(chosen(x, (focal + 1) % n_agents))"),
    ),
    *_of(
        "learners/q_learner_4am.py",
        f"{KNOWN}::test_a_group_with_frozen_partners_learns_the_mixed_value_of_its_own_agents",
        (
            'target["mixer"](td.by_group(q_next, self.mixed), state[1:])',
            'target["mixer"](td.by_group(q_next, self.mixed), state[:-1])',
        ),
        ('q_taken = params["mixer"](td.by_group', 'q_taken = target["mixer"](td.by_group'),
        ("td.q_targets(valued, q_next", "td.q_targets(steps, q_next"),
    ),
    *_of(
        "components/episode_buffer.py",
        "test_with_partners.py::test_a_group_learns_together_among_frozen_partners",
        ("seat=columns(focal[:, None] % n_agents)[:, 0]", "seat=columns((focal[:, None] + 1) % n_agents)[:, 0]"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_an_agent_is_described_by_its_own_place_in_the_state",
        ("(batch.seat[..., None] + np.arange(1, n)) % n", "(batch.seat[..., None] + np.arange(n - 1)) % n"),
    ),
    # --- environments in Python
    *_of(
        "runners/host_runner.py",
        "runners/test_host_runners.py::test_one_agent_among_partners_plays_the_same_episodes_in_python",
        ("jax.random.split(jax.random.fold_in(key, count))[0]", "jax.random.fold_in(key, count)"),
        ("turn = list(range(first, min(first + len(self.envs), n)))", "turn = list(range(len(self.envs)))"),
    ),
    *_of(
        "controllers/om_controller.py",
        "runners/test_host_runners.py::test_an_episode_that_starts_again_starts_with_an_empty_memory",
        ("restarted(again.reshape(n, side.blocks, -1)", "restarted(~again.reshape(n, side.blocks, -1)"),
    ),
    *_of(
        "components/episode_buffer.py",
        f"{KNOWN}::test_the_subgoal_models_loss_counts_steps_of_a_living_agent",
        ("return self.filled * self.alive", "return self.filled"),
    ),
    *_of(
        "controllers/basic_controller.py",
        f"{KNOWN}::test_the_recurrent_state_before_a_step_is_that_after_the_previous_one",
        ("else start[None], hidden[:-1]]", "else start[None], hidden[1:]]"),
    ),
    *_of(
        "controllers/basic_controller.py",
        "test_with_partners.py::test_what_is_carried_is_the_memory_after_the_last_step_and_learning_starts_from_it[gru]",
        (" if seen.start is None else seen.start", ""),
        ("carried if self.carried_size else params", "params"),
        ("sum(0).astype(jnp.int32) - 1, 0)", "sum(0).astype(jnp.int32) - 2, 0)"),
    ),
    *_of(
        "learners/ppo_learner.py",
        "test_with_partners.py::test_ppo_learns_from_the_memory_it_acted_with",
        ("zero if start is None else start", "zero"),
        ("before_each_step(actor.hidden, seen.start)", "before_each_step(actor.hidden)"),
        ("before_each_step(hidden, start)[:-1]", "before_each_step(hidden)[:-1]"),
    ),
    *_of(
        "controllers/basic_controller.py",
        f"{KNOWN}::test_comas_exploration_is_part_of_its_policy",
        ("(1 - epsilon) * probabilities + epsilon * uniform_over(avail_actions)", "probabilities"),
    ),
    # --- Q-learning
    *_of(
        "learners/q_learner.py",
        f"{KNOWN}::test_the_mixer_mixes_the_values_of_the_actions_taken_and_of_the_best_next_actions",
        ("unroll_with_target(params, target, batch)", "unroll_with_target(params, params, batch)"),
        ('params["mixer"](q_taken[:, :, None], state[:-1])', 'params["mixer"](q_taken[:, :, None], state[1:])'),
        ('target["mixer"](q_next[:, :, None], state[1:])', 'target["mixer"](q_next[:, :, None], state[:-1])'),
        ('target["mixer"](q_next[:, :, None], state[1:])', 'params["mixer"](q_next[:, :, None], state[1:])'),
        ("next_value(q[1:], q_target[1:], steps", "next_value(q[:-1], q_target[1:], steps"),
        ("next_value(q[1:], q_target[1:], steps", "next_value(q[1:], q_target[:-1], steps"),
    ),
    *_of(
        "learners/q_learner_4am.py",
        f"{KNOWN}::test_the_focal_agents_loss_is_its_td_loss_plus_the_agent_models_loss",
        ("return loss + model_loss,", "return loss,"),
        ("frozen.outputs[1:], steps.avail_next", "frozen.outputs[:-1], steps.avail_next"),
        ("frozen.outputs[1:], steps.avail_next", "online.outputs[1:], steps.avail_next"),
    ),
    *_of(
        "learners/q_learner_4am.py",
        f"{KNOWN}::test_subgoals_are_judged_from_the_recurrent_state_before_each_step",
        ("embedding = jax.lax.stop_gradient(inferred.embedding)", "embedding = inferred.embedding"),
        (
            "before_each_step(self.mac.unroll_on(agent, seen, embedding).hidden, seen.start)",
            "self.mac.unroll_on(agent, seen, embedding).hidden",
        ),
    ),
    # --- QTRAN
    *_of(
        "learners/qtran_learner.py",
        f"{KNOWN}::test_the_three_terms_of_qtran_by_hand",
        ("chooser = online.outputs if self.settings.double_q else frozen.outputs", "chooser = frozen.outputs"),
        ('target["mixer"].joint_q(frozen.hidden[1:]', "mixer.joint_q(frozen.hidden[1:]"),
        (
            "joint_best = jax.lax.stop_gradient(mixer.joint_q(hidden, one_hot(best), state))",
            "joint_best = mixer.joint_q(hidden, one_hot(best), state)",
        ),
        ("- joint_best + value", "- joint_best"),
        ("jax.lax.stop_gradient(joint) + value", "joint + value"),
        ("jax.lax.stop_gradient(joint) + value", "jax.lax.stop_gradient(joint)"),
        ("jnp.minimum(nopt_error, 0.0) ** 2", "nopt_error**2"),
        ("self.settings.opt_loss * opt_loss", "opt_loss"),
        ("self.settings.nopt_min_loss * nopt_loss", "nopt_loss"),
        ("loss = td_loss + ", "loss = "),
    ),
    # --- COMA
    *_of(
        "learners/coma_learner.py",
        f"{KNOWN}::test_comas_critic_learns_the_teams_return_for_dead_agents_too",
        ("td.lambda_targets(reward, steps.over,", "td.lambda_targets(reward, steps.ended,"),
        ("jnp.broadcast_to(self.spec.team_reward(steps.reward)[..., None], steps.reward.shape)", "steps.reward"),
        ("self._steps(batch).filled", "self._steps(batch).acted"),
        ("taken[1:], s.gamma", "taken[:-1] + 1, s.gamma"),
    ),
    *_of(
        "learners/coma_learner.py",
        f"{KNOWN}::test_comas_advantage_and_entropy_by_hand",
        ("baseline = (jax.lax.stop_gradient(pi) * q).sum(-1)", "baseline = q.mean(-1)"),
        ("advantage = pick(q, steps.actions) - baseline", "advantage = pick(q, steps.actions)"),
        ("mask = steps.acted", "mask = steps.filled"),
        ("entropy = masked_mean(-(pi", "entropy = masked_mean((pi"),
        ("coma_loss = -masked_mean(advantage * log_pi, mask)", "coma_loss = masked_mean(advantage * log_pi, mask)"),
        ("coma_loss - self.settings.entropy_coef * entropy", "coma_loss + self.settings.entropy_coef * entropy"),
        ("coma_loss - self.settings.entropy_coef * entropy", "coma_loss - entropy"),
    ),
    *_of(
        "learners/coma_learner.py",
        f"{KNOWN}::test_comas_policy_gradient_does_not_pass_through_the_baseline",
        ("baseline = (jax.lax.stop_gradient(pi) * q).sum(-1)", "baseline = (pi * q).sum(-1)"),
    ),
    *_of(
        "learners/coma_learner.py",
        f"{KNOWN}::test_comas_exploration_is_part_of_its_policy",
        ("self.mac.selector.epsilon(t_env)", "0.0"),
    ),
    # --- PPO
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_ppos_clipped_objective",
        ("jnp.minimum(ratio * along.advantage, clipped * along.advantage)", "ratio * along.advantage"),
        ("jnp.minimum(ratio * along.advantage, clipped * along.advantage)", "clipped * along.advantage"),
        ("jnp.minimum(ratio * along.advantage", "jnp.maximum(ratio * along.advantage"),
        ("jnp.clip(ratio, 1 - s.ppo_clip, 1 + s.ppo_clip)", "jnp.minimum(ratio, 1 + s.ppo_clip)"),
        ("jnp.clip(ratio, 1 - s.ppo_clip, 1 + s.ppo_clip)", "jnp.maximum(ratio, 1 - s.ppo_clip)"),
        ("actor_loss = -masked_mean(gain, along.acted)", "actor_loss = -masked_mean(gain, along.counted)"),
        ("actor_loss = -masked_mean(gain, along.acted)", "actor_loss = masked_mean(gain, along.acted)"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_ppos_value_loss_and_its_weight",
        ("(values - along.returns) ** 2, along.counted", "(values - along.returns) ** 2, along.acted"),
        ("s.value_coef * value_loss", "value_loss"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_unavailable_actions_have_no_entropy",
        ("jnp.where(avail_actions, logits, UNAVAILABLE)", "logits"),
        ("value_loss - bonus", "value_loss + bonus"),
        ("log_pi, 0.0)).sum(-1), along.acted)", "log_pi, 0.0)).sum(-1), along.counted)"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_the_entropy_bonus_may_fall_to_zero_over_the_run",
        ("(self.left(t_env) if s.entropy_decay else 1.0)", "1.0"),
        ("if s.entropy_decay else 1.0)", "if s.entropy_coef else 1.0)"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_advantages_are_normalised_over_the_steps_that_agents_acted",
        ("centred = advantage - (advantage * mask).sum(axes, keepdims=True) / count", "centred = advantage"),
        ("centred = advantage - (advantage * mask)", "centred = advantage - advantage"),
        ("jnp.sqrt((centred**2 * mask)", "jnp.sqrt((centred**2)"),
        ("return centred / (deviation + 1e-6)", "return centred"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_prosocial_agents_mix_their_reward_with_the_teams_mean",
        ("(1 - share) * batch.reward + share", "batch.reward + share"),
    ),
    *_of(
        "components/episode_buffer.py",
        f"{KNOWN}::test_prosocial_agents_mix_their_reward_with_the_teams_mean",
        ("shared(batch.reward.mean(-1))", "own(batch.reward)"),
        ("each(batch.reward.mean(-1))", "batch.reward"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_prosocial_agents_go_on_earning_after_they_left",
        ("self.shared_reward |= s.prosocial > 0", "self.shared_reward |= False"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_generalised_advantages_by_a_loop",
        ("td.lambda_targets(steps.reward, steps.ended,", "td.lambda_targets(steps.reward, steps.over,"),
        ("normalised(returns - values[:-1], steps.acted,", "normalised(returns, steps.acted,"),
        ("normalised(returns - values[:-1], steps.acted,", "normalised(returns - values[:-1], steps.filled,"),
        ("(0, 1) if self.per_seat else None", "None"),
        ("before_each_step(actor.hidden, seen.start)[:-1]", "actor.hidden[:-1]"),
        ("before_each_step(hidden, start)[:-1])", "hidden[:-1])"),
        ("s.gamma, s.gae_lambda)", "s.gamma, 1.0)"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_generalised_advantages_by_a_loop",
        ("values = values * deviation + mean", "values = 1 * values"),
        ("returns=(returns - mean) / deviation", "returns=returns"),
    ),
    *_of(
        "learners/ppo_learner.py",
        f"{KNOWN}::test_returns_are_normalised_by_running_statistics",
        ("mean(returns**2), jnp.ones", "mean(returns) ** 2, jnp.ones"),
        ("(1 - FORGET) * old + FORGET * now", "FORGET * old + (1 - FORGET) * now"),
        ("mean = self.mean / weight", "mean = self.mean"),
        ("self.square / weight - mean**2", "self.square / weight"),
    ),
    *_of(
        "modules/critics/central.py",
        f"{KNOWN}::test_a_central_critic_values_each_agent_from_its_own_input_and_the_state",
        ("inputs @ weight[:own] + state @ weight[own:] + bias", "inputs @ weight[:own] + bias"),
        ("inputs @ weight[:own] + state @ weight[own:] + bias", "state @ weight[own:] + bias"),
    ),
    # --- partners and scores
    *_of(
        "runners/team_runner.py",
        "test_with_partners.py::test_best_responses_to_several_partners_in_one_program",
        ("return tuple(place[None] for _ in lineup.groups)", "return tuple(0 * place[None] for _ in lineup.groups)"),
    ),
    *_of(
        "controllers/mixed_controller.py",
        "test_with_partners.py::test_best_responses_to_several_partners_in_one_program",
        ("jnp.stack(actions)[params.group]", "actions[0]"),
        ("np.where(groups == g, places, 0)", "0 * places"),
    ),
    *_of(
        "runners/team_runner.py",
        "test_with_partners.py::test_only_the_oracle_is_given_the_identity_of_its_partners",
        ("jax.nn.one_hot(ids, self.mac.prior_size).sum(-2)", "jax.nn.one_hot(0 * ids, self.mac.prior_size).sum(-2)"),
    ),
    *_of(
        "evaluation/scores.py",
        "evaluation/test_scores.py",
        ("(returns - self.random) / (self.best - self.random)", "(returns - self.random) / self.best"),
        ("gain = self.best - self.random", "gain = self.best"),
        ("x[rng.integers(len(x), size=len(x))] for x in tasks", "rng.choice(x.ravel(), x.shape) for x in tasks"),
        ("_resampled(better, 0) - _resampled(worse, 1)", "_resampled(better, 0) - _resampled(worse, 0)"),
        ("_iqm(better) - _iqm(worse)", "_iqm(worse) - _iqm(better)"),
        ("0.5 * (x[:, None] == y)", "0.0 * (x[:, None] == y)"),
    ),
    # --- on-policy learners
    *_of(
        "components/chunks.py",
        f"{KNOWN}::test_chunks_are_consecutive_stretches_and_the_last_one_is_padded_with_masked_steps",
        ("x = x[::size].reshape(n * batch", "x = x[:n].reshape(n * batch"),
        ("jnp.moveaxis(x.reshape(n, size, batch, *rest), 0, 1)", "x"),
    ),
    *_of(
        "components/chunks.py",
        f"{MODELS}::test_chunks_of_an_agent_model_are_its_whole_unroll",
        ("jnp.moveaxis(x.reshape(size, n, rows // n, *rest), 1, 0)", "x"),
        ("reshape(n * size, rows // n, *rest)[:time]", "reshape(n * size, rows // n, *rest)"),
    ),
    *_of(
        "components/chunks.py",
        f"{MODELS}::test_an_episode_of_seq_len_steps_is_one_chunk_and_longer_ones_have_chunks_of_about_that_length",
        ("len(memory) - 1 <= seq_len", "len(memory) <= seq_len"),
        ("-(-(time - 1) // seq_len)", "-(-time // seq_len)"),
    ),
    *_of(
        "learners/on_policy.py",
        f"{MODELS}::test_an_update_unrolls_agent_models_by_chunks",
        (", later_starts(rollout.inferred.memory, s.seq_len))", ")"),
    ),
    *_of(
        "learners/on_policy.py",
        f"{MODELS}::test_on_policy_learners_train_agent_models_on_chunks",
        ("infer_all(params, seen, episodes.batch, episodes.starts)", "infer_all(params, seen, episodes.batch)"),
        ("self.starts[:, ids]", "self.starts"),
    ),
    *_of(
        "components/chunks.py",
        f"{MODELS}::test_on_policy_learners_train_agent_models_on_chunks",
        ("return jax.lax.stop_gradient(memory[size", "return (memory[size"),
    ),
    *_of(
        "controllers/basic_controller.py",
        f"{MODELS}::test_chunks_of_an_agent_model_are_its_whole_unroll",
        ("jnp.concatenate([first[None], starts])", "jnp.concatenate([starts[:1], starts])"),
    ),
    *_of(
        "learners/on_policy.py",
        f"{KNOWN}::test_minibatches_have_equally_many_chunks_with_steps",
        ("order[i + number * jnp.arange(size)]", "order[i * size + jnp.arange(size)]"),
    ),
    *_of(
        "learners/on_policy.py",
        f"{KNOWN}::test_chunks_without_any_step_come_last_in_every_random_order",
        ("jax.random.uniform(key, filled.shape) + ~filled", "jax.random.uniform(key, filled.shape)"),
        ("jax.random.uniform(key, filled.shape) + ~filled", "1.0 * ~filled"),
    ),
    *_of(
        "learners/on_policy.py",
        f"{KNOWN}::test_the_loss_of_on_policy_learners_includes_the_agent_models_loss",
        ("return loss + model_loss,", "return loss,"),
    ),
    *_of(
        "learners/pqn_learner.py",
        f"{KNOWN}::test_the_td_lambda_targets_of_pqn_by_a_loop",
        ("q_next = unrolled.outputs[1:]", "q_next = unrolled.outputs[:-1]"),
        ("td.value_of_best(q_next, q_next,", "td.value_of_best(q_next, -q_next,"),
        ("td.q_targets(steps, value, s.gamma, s.td_lambda)", "td.q_targets(steps, value, s.gamma, 0.0)"),
        ("td.q_targets(team, value, s.gamma, s.td_lambda)", "td.q_targets(team, value, 1.0, s.td_lambda)"),
    ),
    *_of(
        "learners/base.py",
        f"{KNOWN}::test_the_learning_rate_falls_linearly_with_the_steps_of_the_run",
        ("return 1 - jnp.clip(t_env / float(self.settings.t_max), 0.0, 1.0)", "return 1 - t_env / self.settings.t_max"),
        ("return 1 - jnp.clip(t_env", "return jnp.clip(t_env"),
    ),
    *_of(
        "opponents/generators.py",
        "opponents/test_generators.py::test_multipliers_rise_where_cross_play_is_within_the_margin",
        ("same * (1 + own.sum(1) + theirs.sum(0))", "same * (1 + own.sum(1) + theirs.sum(1))"),
        ("- own - theirs", "- own"),
        ("self_play[:, None] - returns, self_play[None] - returns", "self_play[:, None] - returns, returns"),
        ("(self.settings.pool_margin - gaps)", "(gaps - self.settings.pool_margin)"),
    ),
    *_of(
        "opponents/generators.py",
        "opponents/test_generators.py::test_the_episodes_of_best_responses_are_seen_from_their_seats",
        ('agent_idx=(batch["agent_idx"] + 1) % n', 'agent_idx=batch["agent_idx"]'),
        ("x.shape[1:]), 1, 0)", "x.shape[1:]), 0, 0)"),
    ),
    *_of(
        "opponents/matrix_policies.py",
        "opponents/test_scripted.py::test_strategies_of_the_repeated_prisoners_dilemma",
        ("0 if forgives else defections, defections + 1", "0, defections + 1"),
        ("cooperated | (jnp.arange(spec.n_agents) == seat)", "cooperated"),
        ("situation(last_actions)[seat]", "situation(last_actions)[0]"),
    ),
    *_of(
        "opponents/matrix_policies.py",
        "opponents/test_scripted.py::test_a_stochastic_strategy_cooperates_with_the_probabilities_of_its_table",
        ("table[situation(last_actions)[seat]]", "table[situation(last_actions)[1 - seat]]"),
        ("jnp.where((last > 0).any(), last.argmax(-1), -1)", "last.argmax(-1)"),
    ),
    *_of(
        "envs/strategies.py",
        "envs/test_envs.py::test_goals_of_a_repeated_game_are_strategies_and_the_one_that_explains_the_actions_is_reached",
        ("2 * defected + by_others", "defected + 2 * by_others"),
        ("jnp.where(last_actions < 0, FIRST, ", "jnp.where(last_actions < 0, 0, "),
    ),
    *_of(
        "envs/matrix_game.py",
        "envs/test_envs.py::test_goals_of_a_repeated_game_are_strategies_and_the_one_that_explains_the_actions_is_reached",
        ("(agent + jnp.arange(n)) % n", "0 * agent + jnp.arange(n)"),
    ),
    *_of(
        "envs/matrix_game.py",
        "envs/test_envs.py::test_a_strategy_that_explains_too_few_actions_is_not_reached",
        ("most >= AGREEMENT * end", "most >= 0"),
    ),
    *_of(
        "envs/matrix_game.py",
        "envs/test_envs.py::test_a_strategy_that_alone_explains_all_actions_is_the_goal_reached",
        ("state.explained.argmax(-1), -1)", "state.explained.argmin(-1), -1)"),
        (" & (state.round >= end)", ""),
    ),
    *_of(
        "evaluation/adaptation.py",
        "evaluation/test_adaptation.py::test_co_players_that_change_play_another_policy_in_the_second_half",
        ("number + 1 < self.second_half", "number < self.second_half"),
        ("jnp.where(self.changes[self.type_of_row],", "jnp.where(self.changes[0],"),
    ),
    *_of(
        "controllers/hand_over.py",
        "controllers/test_hop.py::test_a_scripted_policy_acts_until_planning_takes_over",
        ("test_mode | (t_env >= settings.switch_after)", "t_env >= settings.switch_after"),
        ("(sure[:, None] | own).all(-1)", "sure[:, None].all(-1) | own.all(-1)"),
        (" | ~alive", ""),
    ),
    *_of(
        "controllers/hand_over.py",
        "controllers/test_hop.py::test_the_rule_is_asked_with_the_agents_own_observation_and_seat",
        ("jnp.take_along_axis(obs, seats[..., None], 1)", "obs"),
    ),
    *_of(
        "controllers/hop_planning.py",
        "controllers/test_hop.py::test_who_knows_the_strategy_of_its_partner_plays_the_best_response",
        ("seen._replace(obs=self.env.own_first(seen.obs))", "seen"),
    ),
    *_of(
        "learners/td.py",
        f"{KNOWN}::test_q_learning_with_td_lambda_targets",
        ("next_value, gamma, td_lambda)", "next_value, gamma, 1.0)"),
        ("return jax.lax.stop_gradient(targets)", "return targets"),
    ),
    # --- agent models
    *_of(
        "modules/am/base_am.py",
        f"{KNOWN}::test_predictions_of_dead_agents_and_after_the_end_do_not_count",
        ("* time_first(batch.others_alive)[:-1]", "* jnp.ones_like(time_first(batch.others_alive)[:-1])"),
        ("mask = (time_first(batch.filled)[:-1, ..., None])", "mask = 1.0"),
        ("return self.settings.am_loss_coef * loss,", "return loss,"),
        ("masked_mean(-of_taken, mask)", "masked_mean(of_taken, mask)"),
    ),
    *_of(
        "modules/am/base_am.py",
        f"{KNOWN}::test_liams_loss_is_squared_error_plus_cross_entropy_over_living_agents",
        ("batch.filled[..., None] * batch.others_alive", "1.0 * batch.others_alive"),
        (
            "batch.filled[..., None] * batch.others_alive",
            "batch.filled[..., None] * (batch.others_alive | True)",
        ),
    ),
    *_of(
        "modules/am/liam_am.py",
        f"{KNOWN}::test_liams_loss_is_squared_error_plus_cross_entropy_over_living_agents",
        ("self.settings.am_loss_coef * (obs_loss + act_loss)", "self.settings.am_loss_coef * obs_loss"),
        ("self.settings.am_loss_coef * (obs_loss + act_loss)", "self.settings.am_loss_coef * act_loss"),
        ("self.settings.am_loss_coef * (obs_loss + act_loss)", "(obs_loss + act_loss)"),
    ),
    *_of(
        "modules/am/base_am.py",
        f"{FOCAL}::test_prediction_losses[liam_am]",
        ("time_first(batch.others_obs)) ** 2).mean(-1)", "time_first(batch.others_obs)) ** 2).sum(-1)"),
    ),
    *_of(
        "modules/am/omg_am.py",
        f"{KNOWN}::test_the_subgoal_models_loss_counts_steps_of_a_living_agent",
        ("recons_loss = masked_mean(error, mask)", "recons_loss = masked_mean(error, time_first(batch.filled))"),
        ("chosen.vae.standard(seen.s)", "seen.s"),
        ("decode(posterior.sample(key), inferred.rest)", "decode(posterior.mu, inferred.rest)"),
        ("masked_mean(kl(posterior, chosen.subgoal), mask)", "kl(posterior, chosen.subgoal).mean()"),
        ("kl(posterior, chosen.subgoal)", "kl(chosen.subgoal, posterior)"),
        ("recons_loss + self.settings.cvae_beta * kl_loss", "recons_loss + kl_loss"),
        ("recons_loss + self.settings.cvae_beta * kl_loss", "self.settings.cvae_beta * kl_loss"),
        ("return self.settings.am_loss_coef * (recons_loss", "return (recons_loss"),
    ),
    *_of(
        "modules/am/omg_am.py",
        f"{KNOWN}::test_eta_is_the_probability_of_learning_on_the_hindsight_subgoal",
        ("(noise < self.eta(t_env)) & any_exists", "(noise > self.eta(t_env)) & any_exists"),
        ("(noise < self.eta(t_env)) & any_exists", "(noise < self.eta(t_env))"),
        ("embedding = jax.lax.stop_gradient(inferred.embedding)", "embedding = inferred.embedding"),
        ("at = jnp.arange(ahead.shape[0])[:, None, None] + ahead", "at = ahead"),
    ),
    *_of(
        "modules/am/omg_am.py",
        f"{SUBGOALS}::test_eta_falls_from_start_to_finish",
        ("s.eta_start + passed * (s.eta_finish - s.eta_start)", "s.eta_start - passed * (s.eta_finish - s.eta_start)"),
        ("0.3 * s.t_max", "1.0 * s.t_max"),
    ),
    *_of(
        "modules/am/omg_am.py",
        f"{SUBGOALS}::test_the_hindsight_choice_is_that_of_a_loop_and_never_leaves_the_episode",
        ("jnp.pad(steps[j:], ((0, j), (0, 0), (0, 0)))", "jnp.pad(steps[j + 1 :], ((0, j + 1), (0, 0), (0, 0)))"),
        ("jnp.where(exists, values, -jnp.inf).argmax(0) + 1", "values.argmax(0) + 1"),
        ("jnp.where(exists, values, jnp.inf).argmin(0) + 1", "jnp.where(exists, values, -jnp.inf).argmax(0) + 1"),
        ("jnp.clip(jnp.minimum(wanted, exists.sum(0)), 1)", "jnp.clip(jnp.minimum(wanted, 1), 1)"),
    ),
    *_of(
        "modules/am/omg_am.py",
        f"{SUBGOALS}::test_the_value_of_a_candidate_is_that_of_a_step_conditioned_on_its_latent[gru-RNNAgent]",
        ("jnp.where(available, outputs, 0.0).sum(-1)", "outputs.sum(-1)"),
        ("jnp.maximum(available.sum(-1), 1)", "outputs.shape[-1]"),
    ),
    *_of(
        "learners/omg_learner.py",
        f"{FOCAL}::test_the_next_state_is_valued_with_the_subgoal_that_the_setting_names[same]",
        ("seen.own[1:], embedding[:-1]", "seen.own[1:], embedding[1:]"),
        ("(inputs, hidden[:-1])", "(inputs, hidden[1:])"),
    ),
    *_of(
        "modules/vae.py",
        f"{SUBGOALS}::test_kl_and_reconstruction_by_hand",
        ("0.5 * (p.log_var - q.log_var + ratio - 1).sum(-1)", "0.5 * (ratio - 1).sum(-1)"),
        ("(q.mu - p.mu) ** 2 * jnp.exp(-p.log_var)", "(q.mu - p.mu) ** 2"),
        ("ratio = jnp.exp(q.log_var - p.log_var) +", "ratio = jnp.exp(q.log_var) +"),
        ("self.decoder(q.sample(key)) - self.standard(s)", "self.decoder(q.mu) - self.standard(s)"),
        ("self.decoder(q.sample(key)) - self.standard(s)", "self.decoder(q.sample(key)) - s"),
        ("return (error**2).sum(-1), kl", "return (error**2).mean(-1), kl"),
        ("jnp.exp(self.log_var / 2) * jax.random", "jnp.exp(self.log_var) * jax.random"),
    ),
    *_of(
        "learners/am_learner.py",
        f"{KNOWN}::test_the_pre_training_loss_is_reconstruction_plus_weighted_kl",
        ("self.settings.vae_beta * metrics", "metrics"),
    ),
    # --- OMG+, MeLIBA, and the mixture
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_a_subgoal_is_the_latent_of_what_an_agent_sees_some_steps_later",
        (
            "of_agents = vae.encode(time_first(self._described(batch)))",
            "of_agents = vae.encode(time_first(self._described(batch) * 2))",
        ),
        ("chosen._replace(mu=chosen.mu - of_states.mu)", "chosen"),
        ("alive = time_first(batch.others_alive)", "alive = jnp.ones_like(time_first(batch.others_alive))"),
        ("ChosenOfOthers(subgoal, ahead, then * counted)", "ChosenOfOthers(subgoal, ahead, counted)"),
        ("if self.settings.normalise:", "if False:"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_agents_that_left_give_no_candidates",
        ("there[j + 1 :]", "there[j:]"),
        ("alive if self.settings.mask_dead else jnp.ones_like(alive)", "alive"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_eta_decides_for_whole_episodes",
        ("jax.random.uniform(key, (1, *shape[1:]))", "jax.random.uniform(key, shape)"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_the_chosen_subgoals_likelihood_and_the_others_present",
        ("mask = time_first(batch.mask)[..., None] * chosen.counts", "mask = chosen.counts"),
        ("s.present_coef * (obs_loss + act_loss)", "s.present_coef * act_loss"),
        ('if s.subgoal_loss == "kl":', 'if s.subgoal_loss != "kl":'),
        ("return s.am_loss_coef * total", "return total"),
    ),
    *_of(
        "modules/vae.py",
        f"{MODELS}::test_latents_are_standardised_by_the_statistics_of_the_vaes_training_data",
        ("(latents.mu - jax.lax.stop_gradient(self.latent_mean))", "latents.mu"),
        ("(self.latent_deviation) ** 2 + SPREAD", "(self.latent_deviation) ** 2 + 1e-6"),
        ("latents.log_var - jnp.log(variance)", "latents.log_var"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_the_weighted_likelihood_finds_mean_and_spread_without_steep_gradients",
        ("0.5 * (believed.log_var +", "0.5 * ("),
        ("jnp.exp(-believed.log_var)", "jnp.exp(believed.log_var)"),
        ("jax.lax.stop_gradient(jnp.exp(believed.log_var))", "jnp.exp(believed.log_var)"),
    ),
    *_of(
        "modules/agents/rnn_agent.py",
        f"{MODELS}::test_a_change_is_valued_as_the_difference_to_the_present",
        ("shared - present @ self.fc1.weight[split:]", "shared + present @ self.fc1.weight[split:]"),
    ),
    *_of(
        "learners/q_learner_4am.py",
        f"{MODELS}::test_the_target_network_sees_the_subgoals_of_a_frozen_agent_model",
        ('in ("agent", "mixer") or self.mac.am.in_target]', 'in ("agent", "mixer") or True]'),
        ("inferred = self.mac.infer_all(target, seen, batch).embedding", "inferred = condition.embedding"),
    ),
    *_of(
        "learners/q_learner_4am.py",
        f"{MODELS}::test_hindsight_subgoals_are_the_same_for_both_networks",
        ("jnp.where(condition.in_hindsight, chosen, inferred)", "inferred"),
        (
            "jnp.where(condition.in_hindsight, chosen, inferred)",
            "jnp.where(condition.in_hindsight, condition.embedding, inferred)",
        ),
    ),
    *_of(
        "modules/am/meliba_am.py",
        f"{MODELS}::test_melibas_loss",
        ("loss = now + later + s.meliba_beta", "loss = now + s.meliba_beta"),
        ("(permanent_kl + temporal_kl)", "permanent_kl"),
        ("return s.am_loss_coef * loss, metrics", "return loss, metrics"),
    ),
    *_of(
        "modules/am/base_am.py",
        f"{MODELS}::test_melibas_loss",
        ("there * time_first(batch.mask)[..., None]", "there"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_hindsight_subgoals_are_the_same_for_both_networks",
        (
            "jnp.concatenate([self.who_in(embedding), goals], -1)",
            "jnp.concatenate([0 * self.who_in(embedding), goals], -1)",
        ),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_the_choice_is_the_best_candidate_of_the_judge",
        ("[seen.own, self.who_in(embedding)]", "[seen.own, 0 * self.who_in(embedding)]"),
    ),
    *_of(
        "modules/am/omg_plus_am.py",
        f"{MODELS}::test_the_chosen_subgoals_likelihood_and_the_others_present",
        ('s.later_coef * metrics["later_loss"]', 'metrics["later_loss"]'),
        ("later_action_loss(decoder, self.who_in(", "later_action_loss(decoder, 0 * self.who_in("),
    ),
    *_of(
        "modules/am/meliba_am.py",
        f"{MODELS}::test_the_prior_of_a_belief_is_the_belief_before",
        (
            "jax.lax.stop_gradient(jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]]))",
            "jnp.concatenate([jnp.zeros_like(x[:1]), x[:-1]])",
        ),
    ),
    *_of(
        "modules/am/mix_am.py",
        f"{MODELS}::test_the_change_ahead_counts_only_where_both_ends_exist",
        ("shown[ahead:] * there[:-ahead]", "there[:-ahead]"),
    ),
    *_of(
        "modules/am/mix_am.py",
        f"{MODELS}::test_the_contrastive_loss_is_a_cross_entropy_among_episodes",
        ("jnp.where(mask[..., None, :] > 0, scores, -1e9)", "scores"),
        ("axis1=-2, axis2=-1), mask)", "axis1=-2, axis2=-1), jnp.ones_like(mask))"),
    ),
    *_of(
        "modules/am/mix_am.py",
        f"{MODELS}::test_returns_are_sums_of_later_rewards_of_mean_zero",
        (
            "jnp.cumsum((time_first(batch.reward) * filled)[::-1], 0)[::-1]",
            "jnp.cumsum(time_first(batch.reward) * filled, 0)",
        ),
    ),
    *_of(
        "modules/agents/mix_rnn_agent.py",
        f"{MODELS}::test_the_mixture_is_a_weighted_sum_that_the_policys_loss_trains",
        ("PARTS * (weights * parts).sum(-2)", "PARTS * parts.mean(-2)"),
    ),
    # --- beliefs
    *_of(
        "components/beliefs.py",
        f"{BELIEFS}::test_bayes_rule_by_hand",
        ("posterior = belief * likelihood", "posterior = belief"),
        ("posterior = belief * likelihood", "posterior = likelihood"),
        ("return posterior / _total(posterior)", "return posterior"),
    ),
    *_of(
        "components/beliefs.py",
        f"{BELIEFS}::test_beliefs_stay_normalised_under_any_evidence",
        ("posterior = jnp.where(posterior.sum(-1, keepdims=True) > 0, posterior, belief)", "pass"),
    ),
    *_of(
        "components/beliefs.py",
        f"{BELIEFS}::test_the_belief_in_a_closed_goal_moves_to_its_type_first",
        ("moved = kept + (lost @ same) * share", "moved = kept"),
        ("share = jnp.where(of_type > 0, kept / jnp.where(of_type > 0, of_type, 1.0), evenly)", "share = evenly"),
        ("moved = jnp.where(moved.sum(-1, keepdims=True) > 0, moved, is_open.astype(belief.dtype))", "pass"),
    ),
    *_of(
        "components/beliefs.py",
        f"{BELIEFS}::test_the_prior_forgets_earlier_episodes_at_rate_alpha",
        ("alpha * prior + (1 - alpha) * pursued", "(1 - alpha) * prior + alpha * pursued"),
        ("alpha * prior + (1 - alpha) * pursued", "prior + (1 - alpha) * pursued"),
    ),
    *_of(
        "components/beliefs.py",
        f"{BELIEFS}::test_the_probability_of_a_goal_type_is_split_over_its_open_goals",
        ("each = prior / jnp.maximum(count, 1)", "each = prior"),
        ("(same * is_open[..., None, :]).sum(-1)", "same.sum(-1)"),
        ("belief = each[..., type_of] * is_open", "belief = each[..., type_of]"),
    ),
    # --- HOP: beliefs and planning
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_beliefs_follow_bayes_rule_over_open_goals",
        (
            "(1 - weight) * of_taken + weight / jnp.maximum(avail_actions.sum(-1), 1)",
            "of_taken",
        ),
        ("belief = close(posterior, is_open, m.type_of)", "belief = posterior"),
        (
            "posterior = within(memory.belief, likelihood)",
            "posterior = within(memory.prior[..., m.type_of], likelihood)",
        ),
        ("(memory.belief[..., None] * probabilities).sum(-2)", "probabilities[..., 0, :]"),
        ("complete=memory.complete & ", "complete=memory.complete | "),
        ("m.by_type(posterior), memory.pursued)", "m.by_type(memory.belief), memory.pursued)"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_an_agent_that_reached_its_goal_starts_from_the_prior_again",
        ("return jnp.where(restart[..., None], anew, belief)", "return belief"),
        ("m.type_of[reached], memory.reached)", "m.type_of[reached], -1)"),
        ("belief=jnp.where(on[..., None], belief, memory.belief)", "belief=belief"),
        ("reached=jnp.where(on, reached_type, memory.reached)", "reached=reached_type"),
        ("(running & memory.complete)[:, None, None]", "memory.complete[:, None, None]"),
        ("pursued = jnp.where(memory.reached[..., None] >= 0, reached, memory.pursued)", "pursued = memory.pursued"),
        ("return across(memory.prior, pursued,", "return across(memory.pursued, pursued,"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_an_agent_chooses_anew_when_it_reached_a_goal_that_stays_open",
        ("(closed | m.goals.chosen_anew)", "closed"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_a_goal_without_a_place_is_given_up_with_a_probability_per_step",
        ("belief = (1 - hazard) * belief + hazard * anew", "pass"),
        ("belief = (1 - hazard) * belief + hazard * anew", "belief = hazard * belief + (1 - hazard) * anew"),
        ("(closed | m.goals.chosen_anew)", "(closed | True)"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_beliefs_that_are_switched_off",
        ("likelihood = evidence if s.intra_belief else jnp.ones_like(evidence)", "likelihood = evidence"),
        ("if not self.settings.inter_belief:", "if False:"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{KNOWN}::test_later_actions_do_not_change_the_type_that_was_pursued_while_all_types_were_open",
        ("(running & memory.complete)[:, None, None]", "running[:, None, None]"),
    ),
    *_of(
        "controllers/hop_controller.py",
        HOP_BELIEFS,
        ("near = seen.alive & self._near(obs)", "near = self._near(obs)"),
        (".min(-1) <= gate", ".max(-1) <= gate"),
    ),
    *_of(
        "controllers/hop_planning.py",
        f"{KNOWN}::test_one_step_of_the_search_by_hand",
        ("reward = self.settings.reward_scale * _at(seen.reward, seat)", "reward = _at(seen.reward, seat)"),
        ("self.settings.gamma * continues", "1.0 * continues"),
        ("(_at(seen.alive, seat) | self.shared_reward) & ~seen.terminated", "~seen.terminated"),
        (" & in_time", ""),
        (
            "(after.t < self.env.spec.episode_limit) | self.settings.bootstrap_at_limit",
            "after.t < self.env.spec.episode_limit",
        ),
        (
            "(1 - UNIFORM_PRIOR) * jax.nn.softmax(logits, -1) + UNIFORM_PRIOR * uniform_over(avail)",
            "jax.nn.softmax(logits, -1)",
        ),
        ("goals = jnp.where(seen.alive, self.resample(", "goals = jnp.where(True, self.resample("),
        ("joint = joint.at[rows, seat].set(action)", "joint = joint"),
        (".at[rows, seat].set(1.0)", ""),
    ),
    *_of(
        "components/preferences.py",
        f"{PREFERENCES}::test_unknown_co_players_prefer_the_nearer_of_two_goals_of_a_type",
        ("PREFER_NEAR = (0.95, 1 / 3)", "PREFER_NEAR = (1 / 3, 0.95)"),
        ("STRENGTH = (1.0, 6.0)", "STRENGTH = (0.3, 3.0)"),
    ),
    *_of(
        "components/preferences.py",
        f"{PREFERENCES}::test_features_of_goals_by_hand",
        ("others = distance * playing[..., None]", "others = distance"),
        ("(others.sum(1, keepdims=True) - others)", "others.sum(1, keepdims=True)"),
        ("jnp.where(is_open[:, None], x, jnp.inf).min", "x.min"),
    ),
    *_of(
        "components/preferences.py",
        f"{PREFERENCES}::test_bayes_rule_on_preferences_and_goals_by_hand",
        ("joint * likelihood[..., None, :]", "joint * likelihood[..., None, ::-1]"),
        ("free = (joint - kept).sum(-1, keepdims=True)", "free = (1 - kept.sum((-2, -1), keepdims=True)) / 2"),
        ("return kept + free * choice", "return kept + free * choice.mean(-2, keepdims=True)"),
        ("forgotten * first", "forgotten * joint.sum(-1)"),
    ),
    *_of(
        "controllers/hop_controller.py",
        f"{HOP}::test_preferences_give_the_belief_of_a_board_and_are_kept_for_the_next",
        ("jnp.where(first, joint.sum(-2), memory.belief)", "joint.sum(-2)"),
        ("memory.prior[..., None] * self._choices(seen, all_open)", "self._choices(seen, all_open) / 16"),
        ("stays = is_open * (reached < 0)[..., None] *", "stays = (reached < 0)[..., None] *"),
    ),
    *_of(
        "components/tree_search.py",
        f"{SEARCH}::test_luck_is_not_counted_on",
        ("jax.random.split(jax.random.fold_in(key, s))", "jax.random.split(jax.random.fold_in(key, 0))"),
    ),
    *_of(
        "components/tree_search.py",
        f"{SEARCH}::test_what_others_do_is_answered_when_it_is_seen_and_not_before",
        (" & (tree.drawn[row, at, action] == _number(drawn, tree.odds.shape[-1])[:, None])", ""),
    ),
    *_of(
        "components/tree_search.py",
        f"{SEARCH}::test_the_children_of_an_action_are_kept",
        ("drawn=tree.drawn.at[row, parent, action, place].set(", "drawn=tree.drawn.at[row, parent, action, 0].set("),
        ("jnp.where(places < 0, -1.0, tree.node", "jnp.where(places < 0, 1e9, tree.node"),
    ),
    *_of(
        "components/tree_search.py",
        f"{SEARCH}::test_more_draws_than_places_for_children",
        ("return edge[..., RETURN] / jnp.maximum(edge[..., VISITS], 1)", "return edge[..., RETURN] / 100"),
    ),
    *_of(
        "controllers/hop_planning.py",
        f"{KNOWN}::test_an_agent_whose_goal_closed_pursues_another_one_of_its_type_or_else_any_other",
        ("20.0 * same_type - 40.0 * none", "-40.0 * none"),
        ("20.0 * same_type - 40.0 * none", "20.0 * same_type"),
        ("jnp.where(still_open, goals, score.argmax(-1))", "score.argmax(-1)"),
    ),
    # --- HOP: learning
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_the_value_at_the_time_limit_counts_if_it_is_no_end",
        ("if s.bootstrap_at_limit:", "if False:"),
        ("(1 - batch.terminated[:, :-1, None]) * goes_on", "(1 - batch.terminated[:, :-1, None])"),
        ("reward + s.gamma * unfinished", "reward + unfinished"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{HOP}::test_the_loss_by_hand",
        ('assumed = batch["sample"][:, :-1]', 'assumed = 0 * batch["sample"][:, :-1]'),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_labels_are_the_goals_reached_next",
        ("(goal >= 0) & (real[:, None] > 0)", "goal >= 0"),
        ("start = jnp.full_like(reached[:, 0], -1)", "start = jnp.zeros_like(reached[:, 0])"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_failures_are_labelled_by_what_explains_the_actions",
        (
            "jnp.where(closed, log_likelihood[..., -1:], log_likelihood) * failed[..., None]",
            "log_likelihood * failed[..., None]",
        ),
        ("failed = (next_goal < 0).astype(jnp.float32) * acted", "failed = (next_goal < 0).astype(jnp.float32)"),
        ("jax.nn.softmax(log_prior + of_steps.sum(1), -1)", "jax.nn.softmax(of_steps.sum(1), -1)"),
        ("jnp.where(closed, 0.0, believed).at[..., -1].add(left)", "believed"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_returns_end_where_an_agent_leaves",
        ("total = r + gamma * goes_on * later", "total = r + gamma * later"),
        ("total = r + gamma * goes_on * later", "total = r + goes_on * later"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_a_team_learns_from_all_agents_and_a_focal_agent_from_itself",
        ("observed = acted * (~planned if self.focal else 1.0)", "observed = acted"),
        ("acted = filled * alive[:, :-1]", "acted = filled * jnp.ones_like(alive[:, :-1])"),
        ("mask = acted * planned", "mask = acted"),
        ("if self.shared_reward else acted) * planned", "if self.shared_reward else acted)"),
        ("s.reward_scale * batch.reward[:, :-1]", "batch.reward[:, :-1]"),
        ("policy_loss + s.value_coef * value_loss", "policy_loss + value_loss"),
        ("co_players = s.model_coef * (", "co_players = ("),
        ("policy_loss = masked_mean(-(search * log_pi)", "policy_loss = masked_mean((search * log_pi)"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{KNOWN}::test_agents_of_a_team_that_died_have_values_but_no_policies",
        ("alive[:, 1:] | self.shared_reward", "alive[:, 1:]"),
        ("(jnp.broadcast_to(filled, acted.shape) if self.shared_reward else acted) * planned", "acted * planned"),
    ),
    *_of(
        "learners/hop_learner.py",
        f"{HOP}::test_the_loss_by_hand",
        ("model_loss + s.exclusive_coef * exclusive_loss", "model_loss + exclusive_loss"),
        ("observed * (reached >= 0)", "observed"),
        ("-jnp.log1p(-0.999 * probability)", "-jnp.log(probability)"),
    ),
    # --- optimisation
    *_of(
        "learners/base.py",
        f"{KNOWN}::test_every_network_and_every_seat_is_clipped_by_itself",
        ("jax.vmap(clip)(tree) if isinstance(tree, IDVRNNAgent) else clip(tree)", "clip(tree)"),
        ("return {name: clip_network(tree) for name, tree in grads.items()}, state", "return clip(grads), state"),
        ("factor = jnp.minimum(1.0, largest", "factor = (largest"),
    ),
    *_of(
        "learners/base.py",
        f"{KNOWN}::test_target_networks_are_copied_after_every_interval_of_updates",
        ("state.updates % interval == 0", "state.updates % interval == 1"),
        ("state.updates % interval == 0", "state.updates > interval"),
        ("jnp.where(due, new, old)", "new"),
    ),
    *_of(
        "controllers/basic_controller.py",
        "controllers/test_basic_controller.py::test_without_initial_weights_for_the_embedding_a_policy_starts_as_one_without_agent_model",
        ("gain * first_weights(whole)[..., self.own_size :, :]", "first_weights(whole)[..., self.own_size :, :]"),
        ("[first_weights(without), scaled]", "[first_weights(whole)[..., : self.own_size, :], scaled]"),
        ("eqx.tree_at(first_weights, without,", "eqx.tree_at(first_weights, whole,"),
    ),
    *_of(
        "controllers/basic_controller.py",
        "controllers/test_basic_controller.py::test_the_embeddings_weights_have_a_learning_rate_of_their_own_in_policy_and_critic",
        ("step.at[rows].multiply(rate / lr)", "step.at[rows].multiply(rate)"),
        ('if name in ("agent", "critic") else x', 'if name == "agent" else x'),
        ("self.own_size : self.input_size, :]", ": self.input_size, :]"),
    ),
    *_of(
        "controllers/basic_controller.py",
        "controllers/test_basic_controller.py::test_a_central_critic_learns_of_the_embedding_as_fast_and_of_the_state_as_before",
        ("self.own_size : self.input_size, :]", "self.own_size :, :]"),
    ),
    *_of(
        "learners/base.py",
        "controllers/test_basic_controller.py::test_the_embeddings_weights_have_a_learning_rate_of_their_own_in_policy_and_critic",
        ("self.decayed(weighted, t_env)", "self.decayed(updates, t_env)"),
    ),
    *_of(
        "config.py",
        "test_benchmark.py::test_a_task_takes_over_the_budgets_that_it_leaves_out",
        ("found[key] | own[key]", "own[key]"),
    ),
    # --- opponent shaping
    *_of(
        "envs/shaping_coins.py",
        f"{SHAPING}::test_an_opponent_learns_to_leave_the_coins_of_an_agent_that_retaliates",
        ("LOSS * from_other[::-1]", "LOSS * from_other"),
        ("jnp.stack([took[0, 1], took[1, 0]])", "jnp.stack([took[0, 0], took[1, 1]])"),
    ),
    *_of(
        "envs/shaping_coins.py",
        f"{SHAPING}::test_a_player_that_cooperates_walks_around_the_others_coin_and_one_that_defects_takes_it",
        ("& ~in_the_way", ""),
        ("jnp.where(defects & nearer, to_other, to_own)", "to_own"),
        ("from_other[1].astype(jnp.int32) - from_other[0]", "from_other[0].astype(jnp.int32) - from_other[1]"),
    ),
    *_of(
        "envs/shaping_coins.py",
        f"{SHAPING}::test_the_opponents_gradient_is_that_of_its_expected_return",
        ("rewards[:, ::-1, 1].cumsum(1)[:, ::-1]", "rewards[:, :, 1].cumsum(1)"),
        ("jnp.where(defects[1], logit, -logit)", "logit"),
    ),
    *_of(
        "envs/shaping_coins.py",
        f"{SHAPING}::test_players_decide_again_only_when_a_coin_was_taken",
        ("jnp.where(state.decide, jax.random.uniform(key, (2,)) < chance, state.defects)", "chance > 0.5"),
        ("uniform(key, (2,)) < chance", "uniform(key, (2,)) > chance"),
    ),
    *_of(
        "envs/shaping_coins.py",
        f"{SHAPING}::test_an_opponent_that_defects_when_behind_takes_the_coins_of_an_agent_that_went_ahead",
        ("for sign in (1, -1))", "for sign in (1, 1))"),
    ),
    *_of(
        "envs/shaping_game.py",
        f"{SHAPING}::test_expected_payoffs_are_those_of_the_game",
        ("theirs[:FIRST].reshape(2, 2).T)", "theirs[:FIRST].reshape(2, 2))"),
        ("joint(own[FIRST], theirs[FIRST])", "joint(own[0], theirs[0])"),
    ),
    *_of(
        "envs/shaping_game.py",
        f"{SHAPING}::test_an_opponent_learns_to_cooperate_with_tit_for_tat_and_to_defect_otherwise",
        ("logits + self.settings.opponent_lr * gradient", "logits - self.settings.opponent_lr * gradient"),
        ("return self.settings.rounds * theirs, mine", "return self.settings.rounds * mine, mine"),
    ),
    # --- anticipated steps, influence, intentions
    *_of(
        "learners/lola_learner.py",
        f"{OTHER_MINDS}::test_lola_goes_where_the_derivatives_by_hand_point",
        ("g + scale * h", "g - scale * h"),
        ("                if j != i:", "                if j == i:"),
    ),
    *_of(
        "learners/lola_learner.py",
        f"{OTHER_MINDS}::test_lolas_correction_is_at_most_so_many_times_as_long_as_the_own_gradient",
        ("jnp.minimum(1.0, longest", "(longest"),
        ("self.settings.lola_limit * optax.global_norm(own)", "self.settings.lola_limit"),
    ),
    *_of(
        "learners/lola_learner.py",
        f"{OTHER_MINDS}::test_values_over_several_steps_have_the_derivatives_of_the_return",
        ("so_far = jnp.cumsum(log_pi, 0)", "so_far = log_pi"),
        ("magic_box(so_far) - magic_box(so_far - log_pi)", "magic_box(so_far)"),
        ("self.settings.gamma ** jnp.arange(len(weight))[:, None]", "1.0"),
    ),
    *_of(
        "learners/influence_learner.py",
        f"{OTHER_MINDS}::test_influence_is_the_divergence_from_what_the_others_would_do_anyway",
        ("jnp.exp(given) * (given - expected)", "jnp.exp(expected) * (given - expected)"),
        ("of_others + log_pi[..., None, None]", "of_others"),
    ),
    *_of(
        "learners/influence_learner.py",
        f"{OTHER_MINDS}::test_an_agent_is_paid_only_for_what_others_still_do",
        ("following = jnp.concatenate([acts[:, 1:], jnp.zeros_like(acts[:, :1])], 1)", "following = acts"),
    ),
    *_of(
        "modules/intentions.py",
        f"{INTENTIONS}::test_the_filter_sums_over_all_sequences_of_intentions_and_goals",
        ("(reached < 0)[..., None] * (1.0 - hazard)", "(1.0 - hazard)"),
        ("is_open[1:, :, None] * (reached < 0)", "is_open[:-1, :, None] * (reached < 0)"),
        ("ended, of_reached = explained(acted, of_hit)", "ended, of_reached = explained(belief, of_hit)"),
    ),
    *_of(
        "components/preferences.py",
        f"{PREFERENCES}::test_who_reaches_a_goal_pursued_it_unless_by_accident",
        ("(1 - ACCIDENT) * jax.nn.one_hot(reached, goals) + ACCIDENT", "jax.nn.one_hot(reached, goals)"),
    ),
]


def occurrences(mutant: Mutant) -> int:
    """How often the text occurs in the file; a mutant needs exactly one."""
    return (ROOT / "omg" / mutant.file).read_text().count(mutant.text)


def main(arguments: list[str]) -> int:
    options = dict(argument.removeprefix("--").partition("=")[::2] for argument in arguments)
    if unknown := set(options) - {"only", "jobs"}:
        print(f"unknown option {sorted(unknown)[0]}: mutants.py takes --only=SUBSTRING and --jobs=N.")
        return 2
    only = options.get("only", "")
    mutants = [m for m in MUTANTS if any(only in part for part in (m.file, m.text, m.replacement, *m.tests))]
    misplaced = [m for m in mutants if occurrences(m) != 1]
    for mutant in misplaced:
        print(f"{occurrences(mutant)} occurrences instead of one in {mutant.file}: {mutant.text}")
    if misplaced or not mutants:
        print("nothing was run." if misplaced else f"no mutant contains {only!r}.")
        return 1

    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        unchanged = copy_of(ROOT, Path(folder) / "unchanged")
        # JaxMARL is imported once at the start of the tests, which takes seconds. No test of a mutant uses it.
        (unchanged / "jaxmarl").mkdir()
        (unchanged / "jaxmarl" / "__init__.py").touch()
        status, output = run(unchanged, tests)
        if status != 0:
            print(f"the tests fail without any mutant:\n{output}")
            return 1
        print(f"{len(tests)} tests pass on the unchanged code ({time.monotonic() - started:.0f} s)", flush=True)
        with ThreadPoolExecutor(int(options.get("jobs", 2))) as pool:
            results = pool.map(lambda pair: judge(unchanged, Path(folder) / str(pair[0]), pair[1]), enumerate(mutants))
            survived = list(report(mutants, results))
    minutes = (time.monotonic() - started) / 60
    print(f"{len(mutants) - len(survived)} of {len(mutants)} mutants killed in {minutes:.1f} minutes")
    return 1 if survived else 0


def report(mutants: list[Mutant], results: Iterator[tuple[bool, str]]) -> Iterator[Mutant]:
    """Prints one line per mutant as the results come in; yields the mutants that were not killed."""
    for mutant, (killed, note) in zip(mutants, results, strict=True):
        print(f"{note}: {mutant.file}: {mutant.text} → {mutant.replacement}", flush=True)
        if not killed:
            yield mutant


def judge(unchanged: Path, folder: Path, mutant: Mutant) -> tuple[bool, str]:
    """Runs a mutant's tests on a copy that contains it. Only a failing test kills it, not an error of collection."""
    copy = copy_of(unchanged, folder)
    path = copy / "omg" / mutant.file
    path.write_text(path.read_text().replace(mutant.text, mutant.replacement))
    status, output = run(copy, list(mutant.tests))
    shutil.rmtree(copy)
    if status == 1:
        return True, "killed"
    return False, "SURVIVED" if status == 0 else f"NOT TESTED (pytest status {status})\n{output}\n"


def copy_of(root: Path, folder: Path) -> Path:
    """A copy of the package and its tests, with their compiled modules: only the mutated one is compiled anew."""
    for name in ("omg", "tests", "jaxmarl"):
        if (root / name).is_dir():
            shutil.copytree(root / name, folder / name)
    shutil.copy(root / "pyproject.toml", folder)
    return folder


def run(folder: Path, tests: list[str]) -> tuple[int, str]:
    """pytest's exit status (0: all passed, 1: some failed) and the end of its output."""
    environment = os.environ | {
        "PYTHONPATH": str(folder),
        "OMG_TEST_CACHE": str(CACHE),
        "JAX_PLATFORMS": "cpu",
    }
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return 1, f"still running after {TIMEOUT} s"
    return done.returncode, (done.stdout + done.stderr)[-2000:]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
