"""Teams by name: which algorithm takes which seats, and which one is trained."""

import pytest

from omg.config import Command, available, load
from omg.utils.settings import UserError
from omg.utils.teams import Group, check_seats, parse_team, trained_group

ALGORITHMS = ["iql", "iql_omg", "qmix", "d3qn", "d3qn_am", "vdn"]


@pytest.mark.parametrize(
    ("name", "groups"),
    [
        ("4iql3qmix1iql_omg", [(4, "iql"), (3, "qmix"), (1, "iql_omg")]),
        ("1d3qn1d3qn_am", [(1, "d3qn"), (1, "d3qn_am")]),
        ("12vdn1iql", [(12, "vdn"), (1, "iql")]),
        ("1any1iql_omg", [(1, "any"), (1, "iql_omg")]),
        ("2rules1iql", [(2, "rules"), (1, "iql")]),
    ],
)
def test_a_teams_name_is_parsed_into_groups_of_seats(name, groups):
    assert parse_team(name, ALGORITHMS) == [Group(*g) for g in groups]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("4iql3qmx", "no algorithm 'qmx'. Did you mean 'qmix'?"),
        ("iql4", "how many seats"),
        ("4iql3", "reads count, algorithm"),
        ("0iql1vdn", "0 seats for iql"),
    ],
)
def test_a_name_that_is_no_team_is_refused_with_the_reason(name, says):
    with pytest.raises(UserError, match="(?s).*" + says.replace("?", r"\?").replace(".", r"\.")):
        parse_team(name, ALGORITHMS)


def test_counts_must_add_up_to_the_environments_agents():
    groups = parse_team("4iql1iql_omg", ALGORITHMS)
    check_seats(groups, 5, "4iql1iql_omg", "foraging")
    with pytest.raises(UserError, match=r"4 \+ 1 = 5 agents, but foraging has 2"):
        check_seats(groups, 2, "4iql1iql_omg", "foraging")


def test_the_last_group_is_trained_unless_another_is_named():
    groups = parse_team("1iql1qmix1iql", ALGORITHMS)
    assert trained_group(groups, None, "x") == 2
    assert trained_group(groups, "iql", "x") == 2
    assert trained_group(groups, "qmix", "x") == 1
    with pytest.raises(UserError, match="which has no seat"):
        trained_group(groups, "vdn", "x")


def test_a_team_run_has_the_settings_of_the_trained_algorithm():
    command = Command(config="1vdn1iql_omg", env_config="foraging", updates=[("multi_algs", True)])
    config = load(command)
    assert (config["name"], config["train_alg"], config["am_model"]) == ("1vdn1iql_omg", "iql_omg", "omg_am")
    with pytest.raises(UserError, match="--multi_algs"):
        load(Command(config="1vdn1iql_omg", env_config="foraging"))
    with pytest.raises(UserError, match="cannot be trained"):
        load(Command(config="1iql1any", env_config="foraging", updates=[("multi_algs", True)]))
    assert "iql_omg" in available("algs")
