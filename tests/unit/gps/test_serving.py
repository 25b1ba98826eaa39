"""Who serves which cluster: addresses, who is away, who adopts, and when clusters go back."""

from pathlib import Path

import pytest

from fedstrata.errors import AddressError, UnknownChildError, WrongRunError
from fedstrata.process.time_limits import HOLD_S
from fedstrata.process.waiting import RECONNECT_S
from fedstrata.trust.call_table import Claim
from fedstrata.trust.names import Name, Peer
from tests.support.gps_parts import IDS
from tests.support.serving_setting import Setting


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(tmp_path, "method.clusters=3", "deadlines.gps.deadline_s=30")


@pytest.fixture
def up(setting: Setting) -> Setting:
    """All three LPSs are there, and the GPS listens."""
    setting.serving.presence.listen()
    setting.register(0, 1, 2)
    return setting


# --- addresses ----------------------------------------------------------------------------------------------


def test_a_device_is_assigned_once_its_lps_is_there(setting: Setting) -> None:
    device = setting.gps.roster.devices[3]
    assert not setting.serving.assignment(device).is_assigned
    assert not setting.serving.are_all_there
    setting.register(2)
    assignment = setting.serving.assignment(device)
    assert assignment.is_assigned
    assert (assignment.home_id, assignment.lps_id, assignment.lps_address) == ("lps-2", "lps-2", "10.0.0.2:50052")
    setting.register(0, 1)
    assert setting.serving.are_all_there


def test_a_device_that_changes_its_cluster_stays_on_the_lps_that_it_hangs_on(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "topology={lps: 2, devices: [[0, 1], [2, 3, 4]]}")
    setting.register(0, 1)
    device = setting.gps.roster.devices[3]
    for cluster in (2, 0):
        device.cluster = cluster
        assignment = setting.serving.assignment(device)
        assert (assignment.home_id, assignment.lps_id, assignment.lps_address) == ("lps-1", "lps-1", "10.0.0.1:50052")
    assert setting.serving.clusters_of("lps-1") == ["lps-1"]


def test_an_lps_that_comes_back_elsewhere_is_found_there_by_a_restarted_gps_too(setting: Setting) -> None:
    setting.register(2)
    setting.serving.register(setting.registration("lps-2", "10.0.0.8:50052"))
    assert setting.serving.assignment(setting.gps.roster.devices[3]).lps_address == "10.0.0.8:50052"
    setting.restart()
    assert setting.serving.assignment(setting.gps.roster.devices[3]).lps_address == "10.0.0.8:50052"


@pytest.mark.parametrize("lps_id", ["lps-", "lps-01", "gps-0", "lps-x", "lps--1", "", "lps-²", "lps-" + "9" * 5000])
def test_what_is_no_lps_is_refused(setting: Setting, lps_id: str) -> None:
    with pytest.raises(UnknownChildError, match="is not the id of an LPS"):
        setting.serving.register(setting.registration(lps_id))


def test_an_lps_of_another_experiment_or_without_address_is_refused(setting: Setting) -> None:
    request = setting.registration("lps-0")
    request.experiment_sha256 = "0" * 64
    with pytest.raises(WrongRunError, match="has another experiment"):
        setting.serving.register(request)
    with pytest.raises(AddressError, match="write host:port"):
        setting.serving.register(setting.registration("lps-0", address="somewhere"))


# --- who is away --------------------------------------------------------------------------------------------


def test_without_a_deadline_nobody_is_ever_away(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "method.clusters=3")
    setting.serving.presence.listen()
    setting.register(0)
    setting.pass_s(1e6, 0)
    assert setting.serving.adoptable() == {}
    assert setting.serving.check_again_s() is None
    assert setting.serving.presence.hold_s == HOLD_S


def test_after_a_long_pause_of_the_gps_its_lpss_have_time_to_connect_again(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "method.clusters=3", "deadlines.gps.deadline_s=3")
    presence = setting.serving.presence
    presence.listen()
    setting.register(0, 1, 2)
    setting.pass_s(12)
    presence.forgive(11.5)
    setting.pass_s(RECONNECT_S, 1)
    assert setting.serving.adoptable() == {}
    setting.pass_s(2.6, 1)
    assert setting.serving.adoptable() == {"lps-0": "lps-1", "lps-2": "lps-1"}


def test_an_lps_that_has_not_called_since_the_gps_started_is_not_there_after_a_pause(setting: Setting) -> None:
    setting.register(0, 1, 2)
    setting.restart()
    setting.serving.presence.listen()
    setting.pass_s(12, 1)
    setting.serving.presence.forgive(11.5)
    assert [setting.serving.presence.is_there(f"lps-{number}") for number in range(3)] == [False, True, False]


def test_a_short_pause_of_the_gps_is_no_silence(setting: Setting) -> None:
    presence = setting.serving.presence
    presence.listen()
    setting.register(0, 1, 2)
    setting.pass_s(20, 1, 2)
    presence.forgive(5)
    setting.pass_s(14, 1, 2)
    assert setting.serving.adoptable() == {}
    setting.pass_s(1, 1, 2)
    assert setting.serving.adoptable() == {"lps-0": "lps-1"}


def test_an_lps_is_away_when_it_was_silent_for_the_deadline_and_not_before(up: Setting) -> None:
    up.pass_s(20, 0, 2)
    assert up.serving.check_again_s() == 10
    up.pass_s(9.9)
    assert up.serving.adoptable() == {}
    up.pass_s(0.1)
    assert up.serving.adoptable() == {"lps-1": "lps-0"}


def test_an_lps_that_lives_is_asked_to_say_so_three_times_a_deadline(setting: Setting) -> None:
    assert setting.serving.presence.hold_s == 10


def test_an_lps_that_never_came_up_is_away_a_deadline_after_the_gps_began_to_listen(setting: Setting) -> None:
    setting.register(1, 2)
    setting.pass_s(500, 1, 2)
    setting.serving.presence.listen()
    setting.pass_s(29, 1, 2)
    assert setting.serving.adoptable() == {}
    setting.pass_s(1)
    assert setting.serving.adoptable() == {"lps-0": "lps-1"}


def test_a_gps_that_stood_still_itself_does_not_take_that_for_silence(up: Setting) -> None:
    up.pass_s(3600, 0)
    up.serving.presence.listen()
    assert up.serving.adoptable() == {}


# --- who adopts ---------------------------------------------------------------------------------------------


def test_clusters_go_one_by_one_to_the_lps_with_the_fewest_of_these_the_first(setting: Setting) -> None:
    setting.serving.presence.listen()
    setting.register(0, 1, 2, 10)
    setting.pass_s(30, 2, 10)  # 2 serves one cluster, 10 is a spare and serves none
    assert setting.serving.adoptable() == {"lps-0": "lps-10", "lps-1": "lps-2"}
    setting.adopt()
    assert setting.serving.clusters_of("lps-2") == ["lps-1", "lps-2"]
    assert setting.serving.clusters_of("lps-10") == ["lps-0"]
    assert setting.serving.clusters_of("lps-0") == []


def test_a_cluster_that_has_reported_needs_nobody_any_more(up: Setting) -> None:
    up.pass_s(30, 2)
    assert up.serving.adoptable({"lps-0"}) == {"lps-1": "lps-2"}


def test_where_nobody_is_there_nobody_adopts_until_somebody_comes(setting: Setting) -> None:
    setting.serving.presence.listen()
    setting.pass_s(40)
    assert setting.serving.adoptable() == {}
    setting.register(1)
    assert setting.serving.adoptable() == {"lps-0": "lps-1", "lps-2": "lps-1"}


def test_of_an_adopter_that_goes_away_too_the_cluster_goes_to_its_own_lps_if_that_is_back(up: Setting) -> None:
    up.pass_s(30, 1, 2)
    up.adopt()
    assert up.serving.lps_of("lps-0") == "lps-1"
    up.pass_s(30, 0, 2)
    assert up.serving.adoptable() == {"lps-0": "lps-0", "lps-1": "lps-0"}


def test_devices_and_pods_are_told_of_the_adopter(setting: Setting) -> None:
    setting.gps.roster.devices[0].pod_name = setting.gps.roster.devices[3].pod_name = "pod-0"
    setting.serving.presence.listen()
    setting.register(0, 1, 2)
    assert setting.serving.pods() == {"pod-0": ["lps-0", "lps-2"]}
    setting.pass_s(30, 1)
    setting.adopt()
    assignment = setting.serving.assignment(setting.gps.roster.devices[0])
    assert (assignment.home_id, assignment.lps_id, assignment.lps_address) == ("lps-0", "lps-1", "10.0.0.1:50052")
    assert setting.serving.pods() == {"pod-0": ["lps-1"]}
    assert setting.places.members("lps-0")[0].device_id == IDS[0]


# --- back ---------------------------------------------------------------------------------------------------


def test_an_lps_that_is_back_may_have_its_clusters_again(up: Setting) -> None:
    up.pass_s(30, 1, 2)
    up.adopt()
    assert up.serving.returnable() == {}
    up.serving.presence.hear("lps-0")
    assert up.serving.returnable() == {"lps-0": "lps-0"}
    assert up.serving.hand_over("lps-0", "lps-0", 3).is_return
    assert up.serving.clusters_of("lps-0") == ["lps-0"]
    assert up.serving.returnable() == {}


def test_each_change_of_hands_is_a_term_and_what_is_said_in_an_earlier_one_is_not_current(setting: Setting) -> None:
    assert setting.serving.is_current("lps-0", 0)
    version = setting.places.version
    setting.serving.hand_over("lps-0", "lps-1", 2)
    setting.serving.hand_over("lps-0", "lps-0", 3)
    assert [setting.serving.is_current("lps-0", term) for term in (0, 1, 2)] == [False, False, True]
    assert setting.serving.term_of("lps-1") == 0
    assert setting.places.version == version + 2


async def test_an_lps_belongs_to_a_cluster_in_the_terms_in_which_it_has_served_it(setting: Setting) -> None:
    setting.serving.hand_over("lps-0", "lps-1", 2)
    setting.serving.hand_over("lps-0", "lps-0", 3)

    async def terms_of(number: int, claimed: str | None = None) -> list[bool]:
        peer = Peer("run-1", (Name("lps", f"lps-{number}"),))
        claims = [Claim(claimed, "lps-0", term) for term in (0, 1, 2, 3, -1, None)]
        return [await setting.serving.belongs(peer, claim) for claim in claims]

    assert await terms_of(0) == [True, False, True, False, False, True]
    assert await terms_of(1) == [False, True, False, False, False, True]
    assert await terms_of(2) == [False] * 6
    assert await terms_of(1, claimed="lps-0") == [False] * 6


def test_a_restarted_gps_knows_who_serves_what_and_gives_everybody_a_deadline_to_be_heard(up: Setting) -> None:
    up.pass_s(30, 1, 2)
    up.adopt()
    version = up.places.version
    up.restart()
    assert up.serving.lps_of("lps-0") == "lps-1"
    assert up.serving.term_of("lps-0") == 1
    assert up.places.version == version
    up.pass_s(1000)
    up.serving.presence.listen()
    assert up.serving.adoptable() == {}
    up.pass_s(30, 2)
    assert up.serving.adoptable() == {"lps-0": "lps-2", "lps-1": "lps-2"}


def test_a_handover_is_of_the_global_round_then_open_and_after_the_last_of_the_evaluation(setting: Setting) -> None:
    rounds = setting.gps.experiment.training.global_rounds
    changed = [setting.serving.hand_over("lps-0", "lps-1", number) for number in (0, rounds - 1, rounds)]
    told = ["global round 1", f"global round {rounds}", "evaluation"]
    assert [setting.serving.stage_of(handover.global_round) for handover in changed] == told


def test_an_lps_that_is_refused_is_away_at_once_and_for_good(up: Setting) -> None:
    up.serving.presence.refuse("lps-1")
    assert up.serving.clusters_of("lps-1") == []
    assert up.serving.adoptable() == {"lps-1": "lps-0"}
    assert up.serving.awaited() == {"lps-0", "lps-1", "lps-2"}
    up.adopt()
    up.pass_s(1, 0, 1, 2)  # whatever it says
    assert up.serving.adoptable() == up.serving.returnable() == {}
    assert up.serving.clusters_of("lps-0") == ["lps-0", "lps-1"]


def test_without_deadlines_nobody_adopts_from_an_lps_that_is_refused(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "method.clusters=3")
    setting.serving.presence.listen()
    setting.register(0, 1, 2)
    setting.serving.presence.refuse("lps-1")
    assert setting.serving.clusters_of("lps-1") == []
    assert setting.serving.adoptable() == {}
    assert setting.serving.awaited() == {"lps-0", "lps-2"}
