"""From words on the command line to one configuration: parsing, merging, names, and labels of environments."""

import pytest
import yaml

from omg.build import known_keys, make_env, resolve
from omg.cli import main, parse
from omg.config import available, env_label, lineage, load, read_yaml, recursive_dict_update
from omg.utils.settings import UserError


def merged(*words):
    return load(parse(list(words)))


def resolved(*words):
    command = parse(list(words))
    return resolve(load(command), command.typed_keys())[0]


def test_order_is_default_then_environment_then_algorithm_then_command_line(tmp_path):
    env, algorithm = tmp_path / "e.yaml", tmp_path / "a.yaml"
    env.write_text("# e\nenv: foraging\nlr: 0.1\ngamma: 0.1\nt_max: 1\n")
    algorithm.write_text("# a\nname: mine\ngamma: 0.2\nt_max: 2\n")
    config = merged(f"--env-config={env}", f"--config={algorithm}", "--t_max=3")
    assert (config["batch_size"], config["lr"], config["gamma"], config["t_max"]) == (32, 0.1, 0.2, 3)


def test_words_may_come_in_any_order():
    words = ["with", "env_args.food=2", "--seed=3", "train", "--config=qmix", "env_args.players=3", "--debug"]
    one, two = merged(*words), merged("train", "--debug", "--config=qmix", "--seed=3", *words[:2], words[5])
    assert one == two
    assert one["env_args"]["food"] == 2
    assert one["env_args"]["grid_size"] == 8
    assert one["debug"] is True
    assert one["mixer"] == "qmix"


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("5e4", 5e4), ("1e-3", 1e-3), ("true", True), ("null", None), ("[1, 2]", [1, 2]), ("qmix", "qmix")],
)
def test_values_are_typed_as_yaml_reads_them(text, value):
    assert parse([f"--anything={text}"]).updates == [("anything", value)]


def test_a_value_may_be_a_separate_word():
    """`--key value` equals `--key=value`."""
    apart = "train --config qmix --env-config two_step --seed 3 --lr 1e-3 --env_args.x -1 --debug with t_max=5"
    joined = "train --config=qmix --env-config=two_step --seed=3 --lr=1e-3 --env_args.x=-1 --debug=true with t_max=5"
    assert parse(apart.split()) == parse(joined.split())
    assert parse(["--import", "one", "--import=two"]).imports == ["one", "two"]


@pytest.mark.parametrize("flag", ["--debug", "--save_replay", "--resume", "--evaluate"])
def test_a_flag_does_not_take_the_verb_after_it_as_its_value(flag):
    command = parse([flag, "train", "--config=iql"])
    assert (command.verb, command.updates) == ("train", [(flag[2:], True)])
    assert parse([flag, "false", "train"]).updates == [(flag[2:], False)]
    assert parse(["--json", "bench"]).verb == "bench"
    assert parse(["--seed", "train"]).updates == [("seed", True)], "a verb is never a value"


def test_merging_goes_level_by_level():
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert recursive_dict_update(base, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


@pytest.mark.parametrize("env", ["two_step", "chicken", "foraging", "battle", "coin_game"])
def test_a_saved_configuration_can_be_run_again(tmp_path, env):
    """`with config.yaml` gives the same settings and the same environment, although the default is foraging."""
    first = resolved("--config=qmix", f"--env-config={env}", "--seed=7")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(first, sort_keys=False))
    again = resolved("with", str(path))
    assert again == first
    assert resolved("--config=vdn", "--env-config=climbing", "with", str(path)) == first
    assert again["env_config"] == env
    assert make_env(again).spec == make_env(first).spec
    assert env_label(again) == env_label(first)


def test_a_run_from_a_saved_configuration_saves_the_same_configuration(tmp_path):
    small = ["--t_max=40", "--rnn_hidden_dim=4", "--hypernet_embed=4", "--use_tensorboard=false", "--save_model=false"]
    first = resolved("--config=qmix", "--env-config=two_step", *small, "--test_nepisode=2")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(first, sort_keys=False))
    assert main(["train", f"--run_dir={tmp_path / 'run'}", "with", str(path)]) == 0
    saved = tmp_path / "run" / "config.yaml"
    assert read_yaml(saved) == first
    assert resolved("with", str(saved)) == first


@pytest.mark.parametrize("folder", ["algs", "envs"])
def test_every_shipped_configuration_has_a_description_and_known_keys_only(folder):
    for name, path in available(folder).items():
        assert path.read_text().startswith("# "), name
        assert set(read_yaml(path)) <= set(known_keys()) | {"based_on", "tuned"}, name


@pytest.mark.parametrize("name", sorted(available("algs")))
def test_shipped_algorithms_set_only_what_their_components_read(name):
    layer = lineage(name)[name]
    config = merged(f"--config={name}")
    assert resolve(config, layer)[0]["name"] == name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--config=qmxi"], "Did you mean 'qmix'"),
        (["--env-config=forraging"], "Did you mean 'foraging'"),
        (["--btach_size=3"], "Did you mean 'batch_size'"),
        (["--lerning_ratee=3"], "unknown key"),
        (["trian"], "Did you mean 'train'"),
        (["--config"], "--config=qmix"),
        (["--import"], "--import=my_module"),
        (["seed=3"], "--seed=3"),
        (["train", "evaluate"], "unexpected word"),
        (["--config=/nowhere/x.yaml"], "cannot read"),
        (["with", "env_args..food=3"], "dots separate names"),
        (["--=3"], "write --key=value"),
        (["--lr=[1"], "not a value that YAML can read"),
    ],
)
def test_a_typo_is_refused_with_what_to_type_instead(words, complaint):
    with pytest.raises(UserError, match=complaint):
        resolved(*words)


def test_labels_of_environments_tell_them_apart(tmp_path):
    """Pools and runs are stored under these labels: maps, matrix games and boards must not share one."""
    words = [
        ["--env-config=battle"], ["--env-config=battle", "with", "env_args.map_name=8m"],
        ["--env-config=battle", "with", "env_args.map_name=3s_vs_5z"],
        *([f"--env-config={name}"] for name in available("envs") if name != "battle"),
        ["--env-config=foraging", "with", "env_args.food=2"], ["--env-config=foraging", "with", "env_args.food=4"],
    ]  # fmt: skip
    labels = [env_label(merged(*w)) for w in words]
    assert len(set(labels)) == len(labels)
    games = [env_label({"env": "matrix_game", "env_args": {"payoff": [[i, 0], [0, i]]}}) for i in range(5)]
    assert len(set(games)) == len(games)
    for label in (*labels, *games):
        assert len(label) <= 80
        assert "/" not in label
        (tmp_path / label).mkdir()


def test_a_label_belongs_to_the_environment_and_not_to_the_name_it_was_chosen_by():
    written_out = merged("--env-config=foraging") | {"env_config": "mine"}
    assert env_label(written_out) == env_label(merged("--env-config=foraging")) == "foraging"
    assert env_label(merged("--env-config=two_step")) == "two_step"
    assert env_label(merged("--env-config=battle", "with", "env_args.map_name=8m")) == "battle__map_name=8m"


def test_an_algorithm_is_based_on_another_one(tmp_path):
    """Its own settings come last; a circle is refused."""
    ppo, omg = merged("--config=ppo"), merged("--config=ppo_omg")
    assert {key for key in ppo if ppo[key] != omg[key]} == {"name", "mac", "am_model"}
    for env in ("foraging", "stag_hunt", "snowdrift"):
        variants = ("ppo", "ppo_am", "ppo_liam", "ppo_omg", "ppo_oracle")
        found = {merged(f"--config={name}", f"--env-config={env}")["policy_model"] for name in variants}
        assert len(found) == 1, "agent models are compared on the network type of their base learner"
    mine, other = tmp_path / "mine.yaml", tmp_path / "other.yaml"
    mine.write_text("based_on: qmix\nname: mine\nlr: 0.25\n")
    assert [merged(f"--config={mine}")[key] for key in ("name", "mixer", "lr")] == ["mine", "qmix", 0.25]
    mine.write_text(f"based_on: {other}\n")
    other.write_text(f"based_on: {mine}\n")
    with pytest.raises(UserError, match="is based on itself"):
        merged(f"--config={mine}")


def test_tuned_settings_hold_for_an_algorithm_and_those_based_on_it():
    for config, lr in (("iql", 0.005), ("iql_omg", 0.005), ("ppo", 0.0005)):
        assert merged(f"--config={config}", "--env-config=simple_spread")["lr"] == lr
    assert merged("--config=iql")["lr"] == 0.0005
    assert merged("--config=iql", "--env-config=simple_spread", "--lr=0.1")["lr"] == 0.1
    # What an algorithm says of itself counts more than what is tuned for the one it is based on.
    assert merged("--config=iql", "--env-config=battle")["batch_size_run"] == 32
    assert merged("--config=iql_beta", "--env-config=battle")["batch_size_run"] == 8
    # Policies with convolutions have no first layer with weights of the embedding.
    for env, gain, rate in (("melting_pot", None, None), ("foraging", 0, 0.0005), ("chicken", 0, 0.002)):
        config = merged("--config=ppo_omg_plus", f"--env-config={env}")
        assert (config["embedding_gain"], config["embedding_lr"]) == (gain, rate)


def test_the_preset_restores_pymarls_settings():
    """Those of the notes: one environment and one update per episode, RMSprop, one-step targets."""
    expected = {
        "optimiser": "rmsprop", "lr": 0.0005, "optim_alpha": 0.99, "optim_eps": 0.00001, "grad_norm_clip": 10.0,
        "gamma": 0.99, "batch_size_run": 1, "batch_size": 32, "buffer_size": 5000, "updates_per_iteration": 1,
        "target_update_interval": 200, "double_q": True, "epsilon_start": 1.0, "epsilon_finish": 0.05,
        "epsilon_anneal_time": 50_000, "rnn_hidden_dim": 64, "td_lambda": 0.0, "layer_norm": False,
        "init": "pytorch", "lr_decay": False, "obs_last_action": True, "obs_agent_id": True,
    }  # fmt: skip
    for env in ("foraging", "simple_spread"):
        config = merged("--config=qmix", f"--env-config={env}", "--preset=pymarl")
        assert {key: config[key] for key in expected} == expected
    assert merged("--config=qmix_beta", "--preset=pymarl")["batch_size_run"] == 8
    with pytest.raises(UserError, match="pymarl"):
        merged("--preset=pymral")


def test_a_preset_in_a_file_counts_as_one_on_the_command_line(tmp_path, capsys):
    path = tmp_path / "old.yaml"
    path.write_text("preset: pymarl\nlr: 0.25\n")
    config = merged("--config=qmix", "with", str(path))
    assert [config[key] for key in ("optimiser", "batch_size_run", "lr")] == ["rmsprop", 1, 0.25]
    assert main(["evaluate", f"--checkpoint_path={tmp_path}", "--preset=pymarl"]) == 2
    assert "--preset=pymarl has no place here" in " ".join(capsys.readouterr().err.split())


def test_a_saved_model_may_have_settings_that_are_gone():
    saved = merged("--config=iql") | {"goal_choice": "clustered", "goal_window": 5}
    assert resolve(saved) == resolve(merged("--config=iql"))
    with pytest.raises(UserError, match="made with goal_choice=continuous, which this version no longer has"):
        resolve(saved | {"goal_choice": "continuous"})
    with pytest.raises(UserError, match="unknown key 'goal_choice'"):
        resolve(saved, ["goal_choice"])
