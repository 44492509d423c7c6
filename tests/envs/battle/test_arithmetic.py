"""Weapons, shields, healing and splash damage, loop by loop against values computed by hand."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from omg.envs.battle.maps import LOOPS_PER_SECOND
from tests.envs.battle.conftest import column

STOP, EAST = 1, 4


def shots(cooldown: float, n: int) -> list[int]:
    """The loops in which a weapon fires that always has a target. Unused fractions of a loop carry over."""
    return [math.ceil(k * cooldown * LOOPS_PER_SECOND) for k in range(n)]


def test_marine_against_marine_ends_at_the_computed_loop(field):
    """45 health, 6 damage, a cooldown of 0.61 seconds: eight shots, the last in loop 96."""
    _, fight, play = field({"marine": 1}, {"marine": 1}, [[10, 16], [15, 16]])
    history = play(fight, 100)
    expected = np.full(101, 45.0)
    for loop in shots(0.61, 8):
        expected[loop + 1 :] = np.maximum(expected[loop + 1 :] - 6, 0)
    for unit in (0, 1):
        np.testing.assert_allclose(column(history, "health", unit), expected)
    assert shots(0.61, 8)[-1] == 96
    assert expected[96] == 3
    assert expected[97] == 0


def test_shields_absorb_hits_without_armour_and_armour_reduces_the_rest(field):
    """A stalker (13 damage, 5 more against armoured) attacks a zealot (light, 50 shield, 100 health, armour 1)."""
    _, fight, play = field({"stalker": 1}, {"zealot": 1}, [[10, 16], [16, 16]])
    shield, health = 50.0, 100.0
    history = play(fight, 150)
    # The zealot approaches and stays in range, so the stalker fires at every opportunity.
    for loop in shots(1.34, 5):
        through = max(13 - shield, 0.0)
        shield, health = max(shield - 13, 0.0), health - (through - 1 if through else 0.0)
        assert column(history, "shield", 1)[loop + 1] == pytest.approx(shield)
        assert column(history, "health", 1)[loop + 1] == pytest.approx(health)
    assert health == 100 - 1 - 12, "the fourth shot exceeds the shield by 2, the fifth is reduced by armour only"


def test_armour_reduces_both_hits_of_a_zealot(field):
    """2 × (8 - 1) against a stalker without shield; 16 against a marine, which has no armour."""
    for other, armour in (("stalker", 1), ("marine", 0)):
        _, fight, play = field({other: 1}, {"zealot": 1}, [[10, 16], [10.9, 16]])
        fight = fight._replace(shield=jnp.zeros_like(fight.shield), quiet=jnp.zeros_like(fight.quiet))
        before, after = play(fight, 1)
        assert float(before.health[0, 0] - after.health[0, 0]) == 2 * (8 - armour)


def test_shields_regenerate_after_7_seconds_and_health_does_not(field):
    _, fight, play = field({"zealot": 1}, {"spine_crawler": 1}, [[2, 2], [30, 30]])
    fight = fight._replace(shield=fight.shield.at[0].set(10.0), health=fight.health.at[0].set(40.0))
    shield = column(history := play(fight, 250), "shield", 0)
    wait = int(7.1 * LOOPS_PER_SECOND)
    assert (shield[: wait + 1] == 10).all()
    assert shield[-1] == pytest.approx(10 + (250 - wait) * 2.8 / LOOPS_PER_SECOND, abs=0.3)
    assert (column(history, "health", 0) == 40).all()


def test_a_medivac_heals_biological_allies_at_the_cost_of_energy(field):
    """12.6 health per second, 0.33 energy per health, 0.7875 energy regenerated per second."""
    names = {"medivac": 1, "marine": 1, "stalker": 1}
    _, fight, play = field(names, {"spine_crawler": 1}, [[10, 16], [11, 16], [12, 16], [30, 30]])
    fight = fight._replace(health=fight.health.at[1:3].set(20.0))
    heal_marine, heal_stalker = 6 + 1, 6 + 2
    history = play(fight, 20, [heal_marine, STOP, STOP])
    assert column(history, "health", 1)[-1] == pytest.approx(20 + 20 * 12.6 / LOOPS_PER_SECOND, rel=1e-4)
    used = 0.33 * 20 * 12.6 / LOOPS_PER_SECOND - 20 * 0.7875 / LOOPS_PER_SECOND
    assert column(history, "energy", 0)[-1] == pytest.approx(50 - used, rel=1e-4)
    assert column(play(fight, 20, [heal_stalker, STOP, STOP]), "health", 2)[-1] == 20, "not biological"
    drained = fight._replace(energy=fight.energy * 0)
    gain = column(play(drained, 20, [heal_marine, STOP, STOP]), "health", 1)[-1] - 20
    assert gain == pytest.approx(19 * 0.7875 / 0.33 / LOOPS_PER_SECOND, rel=1e-3)


def test_a_baneling_explodes_and_damages_all_enemies_near_it(field):
    """16 damage, 35 to light units, to every opposing unit within 2.2 cells, none to its own side or farther away."""
    places = [[10, 16], [11.5, 16], [14, 16], [9.2, 16], [9.4, 16.8]]
    _, fight, play = field({"zealot": 3}, {"baneling": 1, "marine": 1}, places, order=None)
    fight = fight._replace(shield=fight.shield.at[:2].set(20.0))
    before, after = play(fight, 1, [3, 3, 3])
    lost = np.asarray(before.health + before.shield - after.health - after.shield)[:, 0]
    assert lost[1] == 35 - 1, "20 of the shield, then 15 minus 1 of armour"
    assert lost[0] == lost[1] + 6 - 1, "and the shot of the marine"
    assert lost[2] == 0
    assert float(after.health[3, 0]) == 0
    assert float(after.health[4, 0]) == 45


def test_a_colossus_hits_all_units_in_a_beam_across_its_line_of_fire(field):
    places = [[10, 16], [16, 16], [16, 17.5], [16, 18.2], [17, 16]]
    _, fight, play = field({"colossus": 1}, {"zergling": 4}, places)
    before, after = play(fight, 1, [6])
    lost = np.asarray(before.health - after.health)[1:, 0]
    np.testing.assert_allclose(lost, [30 - 0.38 / 22.4, 30 - 0.38 / 22.4, 0, 0], atol=1e-3)


def test_ground_weapons_do_not_hit_flying_units(field):
    _, fight, play = field({"zealot": 1}, {"medivac": 1}, [[10, 16], [11, 16]])
    before, after = play(fight, 1, [6])
    assert float(after.health[1, 0]) == float(before.health[1, 0])
    assert float(after.cooldown[0, 0]) <= 0


def test_enemies_prefer_targets_that_can_hit_them(field):
    """The medivac is nearer than the marine, and the enemy attacks the marine."""
    places = [[11, 16], [12.5, 16], [15, 16]]
    _, fight, play = field({"medivac": 1, "marine": 1}, {"marine": 1}, places)
    before, after = play(fight, 1, [1, 1])
    lost = np.asarray(before.health - after.health)[:2, 0]
    np.testing.assert_array_equal(lost, [0, 6])


def test_units_walk_at_their_speed_and_push_each_other_but_not_buildings(field):
    """A unit walks at its speed, overlapping units separate, and a building does not move."""
    _, fight, play = field({"marine": 2}, {"spine_crawler": 1}, [[5, 5], [20, 20.2], [20, 20.6]])
    history = play(fight, 8, [EAST, STOP])
    assert column(history, "x", 0)[-1] - 5 == pytest.approx(8 * 3.15 / LOOPS_PER_SECOND, rel=1e-5)
    assert column(history, "y", 2)[-1] == pytest.approx(20.6)
    gap = abs(column(history, "y", 1) - column(history, "y", 2))
    assert (np.diff(gap) >= -1e-6).all()
    assert gap[-1] > 0.8
