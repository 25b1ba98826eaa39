"""An LPS that is revoked: it is named to no device, another adopts its clusters, and it may be let in again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fedstrata.process.time_limits import CALL_S, HOLD_S
from fedstrata.trust.names import Name
from fedstrata.trust.security import TlsSecurity
from fedstrata.trust.tls_files import LOOK_S, Revoked
from tests.support.serving_setting import Setting


class Listing(TlsSecurity):
    """A GPS's security with a list that the test sets."""

    now = Revoked()

    def __init__(self) -> None:
        super().__init__(cast(Any, SimpleNamespace(require=print, revoked=lambda: self.now)))


def revoking(setting: Setting, revoked: Revoked) -> None:
    cast(Listing, setting.security).now = revoked


@pytest.fixture
def without_deadlines(tmp_path: Path) -> Setting:
    setting = Setting(tmp_path, "method.clusters=3", security=Listing())
    setting.serving.presence.listen()
    setting.register(0, 1, 2)
    return setting


LPS_1 = Revoked(frozenset({Name("lps", "lps-1")}))


def test_a_revoked_lps_is_named_to_no_device_and_its_cluster_goes_to_another_without_deadlines_too(
    without_deadlines: Setting,
) -> None:
    setting, device = without_deadlines, without_deadlines.gps.roster.devices[1]
    assert setting.serving.assignment(device).lps_id == "lps-1"
    assert setting.serving.check_again_s() == LOOK_S
    revoking(setting, LPS_1)
    assert not setting.serving.assignment(device).is_assigned
    assert not setting.serving.are_all_there
    assert setting.serving.adoptable() == {"lps-1": "lps-0"}
    setting.adopt()
    assert setting.serving.assignment(device).lps_id == "lps-0"
    assert setting.serving.returnable() == {}
    assert setting.serving.adoptable() == {}


def test_a_revoked_lps_adopts_nothing_and_one_that_is_let_in_again_has_its_cluster_back(
    without_deadlines: Setting,
) -> None:
    setting = without_deadlines
    revoking(setting, Revoked(frozenset({Name("lps", "lps-0"), Name("lps", "lps-1")})))
    assert setting.serving.adoptable() == {"lps-0": "lps-2", "lps-1": "lps-2"}
    setting.adopt()
    revoking(setting, LPS_1)
    assert setting.serving.returnable() == {"lps-0": "lps-0"}


def test_without_deadlines_an_lps_that_has_been_silent_for_long_adopts_nothing(without_deadlines: Setting) -> None:
    revoking(without_deadlines, LPS_1)
    without_deadlines.pass_s(HOLD_S + CALL_S + 1, 2)
    assert without_deadlines.serving.adoptable() == {"lps-1": "lps-2"}
    without_deadlines.pass_s(HOLD_S + CALL_S + 1)
    assert without_deadlines.serving.adoptable() == {}


def test_with_deadlines_it_is_looked_each_second_who_is_revoked(tmp_path: Path) -> None:
    setting = Setting(tmp_path, "method.clusters=3", "deadlines.gps.deadline_s=30", security=Listing())
    setting.serving.presence.listen()
    setting.register(0, 1, 2)
    assert setting.serving.check_again_s() == LOOK_S
    revoking(setting, LPS_1)
    assert setting.serving.adoptable() == {"lps-1": "lps-0"}
