"""Words on the command line become one configuration, merged in the right order and typed as YAML reads them."""

import pytest

from omg.config import available, load, parse, read_yaml, recursive_dict_update
from omg.parts import known_keys
from omg.utils.settings import UserError


def merged(*words):
    return load(parse(list(words)), known_keys())


def test_order_is_default_then_world_then_algorithm_then_command_line(tmp_path):
    world, algorithm = tmp_path / "w.yaml", tmp_path / "a.yaml"
    world.write_text("# w\nenv: foraging\nlr: 0.1\ngamma: 0.1\nt_max: 1\n")
    algorithm.write_text("# a\nname: mine\ngamma: 0.2\nt_max: 2\n")
    config = merged(f"--env-config={world}", f"--config={algorithm}", "--t_max=3")
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


def test_merging_goes_level_by_level():
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert recursive_dict_update(base, {"a": {"b": 9}, "e": 4}) == {"a": {"b": 9, "c": 2}, "d": 3, "e": 4}
    assert base == {"a": {"b": 1, "c": 2}, "d": 3}


def test_a_saved_configuration_can_be_run_again(tmp_path):
    import yaml

    first = merged("--config=qmix", "--env-config=two_step", "--seed=7")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(first))
    assert merged("with", str(path)) == first | {"env_args": merged("with", str(path))["env_args"]}
    assert read_yaml(path) == first


@pytest.mark.parametrize("kind", ["algs", "envs"])
def test_every_shipped_configuration_says_what_it_is_and_has_only_known_keys(kind):
    for name, path in available(kind).items():
        assert path.read_text().startswith("# "), name
        assert set(read_yaml(path)) <= known_keys(), name


def test_the_defaults_name_every_key_of_the_run():
    from dataclasses import fields

    from omg.config import CONFIG_DIR
    from omg.parts import RunSettings
    from omg.training import LoopSettings

    defaults = read_yaml(CONFIG_DIR / "default.yaml")
    for field in (*fields(RunSettings), *fields(LoopSettings)):
        assert field.name in defaults, field.name


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--config=qmxi"], "Did you mean 'qmix'"),
        (["--env-config=forraging"], "Did you mean 'foraging'"),
        (["--btach_size=3"], "Did you mean 'batch_size'"),
        (["--lerning_ratee=3"], "unknown key"),
        (["trian"], "Did you mean 'train'"),
        (["--config"], "--config=qmix"),
        (["seed=3"], "--seed=3"),
        (["train", "evaluate"], "unexpected word"),
        (["--config=/nowhere/x.yaml"], "cannot read"),
    ],
)
def test_a_typo_gets_a_sentence_with_what_to_type_instead(words, complaint):
    with pytest.raises(UserError, match=complaint):
        merged(*words)
