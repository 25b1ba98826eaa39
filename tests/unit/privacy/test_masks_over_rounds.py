"""An LPS that chooses every message of every round gets no two sums whose difference is the updates of too few."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from device.masking import shields
from device.masking.masked_for import MaskedFor
from device.masking.masks import Masks
from fedstrata.errors import ExperimentError, PayloadError, RosterError, StateError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import parse_experiment
from fedstrata.rounds import Update
from fedstrata.rounds.mask_roster import roster_digest
from fedstrata.store import write_sealed
from fedstrata.tensors import Flat
from fedstrata.trust.mask_proofs import Proofs
from fedstrata.trust.security import OPEN
from fedstrata.v1 import rounds_pb2 as pb
from tests.support.masks_setting import LAYOUT, MOST_EXAMPLES, grid, masked_experiment, roster_of, update_of

SIZE, DEVICES, LEAST = LAYOUT.size, 6, 3
FIXED = masked_experiment(DEVICES, LEAST, quorum_ratio=1.0)  # five global rounds of two LPS rounds
IDS = FIXED.device_ids()
ROUNDS = FIXED.training.lps_rounds


def trained(device_id: str, model: int) -> Flat:
    """Return a device's update of a model. Updates of the two models differ little, as those of like models do."""
    return np.linspace(1, 2, SIZE, dtype=np.float32) * (1 + IDS.index(device_id)) + np.float32(model * 2**-20)


def update_in(lps_round: int, device_id: str, model: int = 0) -> Update:
    about = f"{lps_round} {model}".encode()
    return replace(update_of(trained(device_id, model), round_number=lps_round), trained_from=about)


class Attacked:
    """Devices, an LPS that asks them for anything, and the sums that their answers give it."""

    def __init__(self, folder: Path, experiment: Experiment = FIXED) -> None:
        self._folder, self._experiment = folder, experiment
        self.masks: dict[str, Masks] = {}
        self.keys: dict[str, list[pb.MaskKey]] = {}
        for name in IDS:
            self.restart(name)
        self.answers: dict[tuple[bytes, int, int], dict[str, np.ndarray]] = {}
        self.rosters: dict[bytes, list[str]] = {}
        self.own_keys: dict[bytes, dict[str, bytes]] = {}

    def restart(self, name: str) -> None:
        proofs = Proofs(self._experiment.run_id, None)
        self.masks[name] = Masks(self._experiment, name, proofs, self._folder)
        self._look(name)

    def _look(self, name: str) -> None:
        key, known = self.masks[name].key, self.keys.setdefault(name, [])
        if key not in known:
            known.append(key)

    def ask(
        self, lps_round: int, members: Sequence[str], model: int = 0, *, most: int | None = None, old: int = 0
    ) -> None:
        """Ask these devices for masked updates in their sum. `old` is the age of their keys in the roster."""
        roster = roster_of([(name, self.keys[name][-1 - old % len(self.keys[name])]) for name in members], most)
        digest = roster_digest(roster)
        self.rosters[digest] = list(members)
        for name in members:
            self.answer(name, roster, lps_round, model)

    def ask_restarted(self, restarted: Sequence[str], lps_round: int, members: Sequence[str]) -> None:
        """Ask devices, some of which have restarted."""
        for name in restarted:
            self.restart(name)
        self.ask(lps_round, members)

    def answer(self, name: str, roster: pb.Roster, lps_round: int, model: int) -> None:
        """Keep a device's answer. Raises the error with which the device refuses."""
        masks = self.masks[name]
        self.own_keys[roster_digest(roster)] = {each.device_id: each.public_key for each in roster.members}
        masks.take(roster)
        values = masks.masked(update_in(lps_round, name, model)).read(0, SIZE)
        self._look(name)
        self.answers.setdefault((roster_digest(roster), lps_round, model), {})[name] = values

    def sums(self) -> list[tuple[frozenset[str], int, int]]:
        """Return the devices, the round and the model of each sum that the LPS can read."""
        return [
            (frozenset(answers), lps_round, model)
            for (digest, lps_round, model), answers in self.answers.items()
            if set(answers) == set(self.rosters[digest])
        ]

    def least_revealed(self) -> int:
        """Return the smallest number of devices of which some combination of the sums is made."""
        rows = np.array([[name in devices for name in IDS] for devices, *_ in self.sums()], float)
        if not len(rows):
            return DEVICES
        rank = np.linalg.matrix_rank(rows)
        subsets = (np.array([mask >> place & 1 for place in range(DEVICES)], float) for mask in range(1, 1 << DEVICES))
        return min(int(each.sum()) for each in subsets if np.linalg.matrix_rank(np.vstack([rows, each])) == rank)


def test_the_attack_of_the_test_recovers_an_update_if_a_deadline_may_exclude(tmp_path: Path) -> None:
    """The page says so; without this test nobody would know whether the attacks below could succeed."""
    attacked = Attacked(tmp_path, masked_experiment(DEVICES, LEAST, quorum_ratio=0.5))
    attacked.ask(0, IDS)
    attacked.ask(1, IDS[1:])
    whole, less = (sum(each.values()) for each in attacked.answers.values())
    assert np.array_equal(whole - less, grid(trained(IDS[0], 0), 2))
    assert attacked.least_revealed() == 1


ATTACKS: dict[str, tuple[Callable[[Attacked], None], type[Exception], str]] = {
    "the same model a round later, without the victim": (
        lambda lps: lps.ask(1, IDS[1:]), RosterError, "without 'device-000'"),
    "a like model a round later": (lambda lps: lps.ask(1, IDS[1:], 1), RosterError, "without 'device-000'"),
    "a like model rounds later": (lambda lps: lps.ask(7, IDS[:5], 1), RosterError, "without 'device-005'"),
    "without several": (lambda lps: lps.ask(1, IDS[:3]), RosterError, "without 'device-003', 'device-004'"),
    "in another order": (lambda lps: lps.ask(1, IDS[:0:-1]), RosterError, "without 'device-000'"),
    "in the same round": (lambda lps: lps.ask(0, IDS[1:]), RosterError, "without 'device-000'"),
    "after a restart of all": (
        lambda lps: lps.ask_restarted(IDS, 1, IDS[1:]), RosterError, "without 'device-000'"),
    "in the same round after a restart of all others": (
        lambda lps: lps.ask_restarted(IDS[1:], 0, IDS[1:]), RosterError, "without 'device-000'"),
    "a round after the last": (lambda lps: lps.ask(ROUNDS, IDS), PayloadError, "round 11, but the run has 10"),
    "a round in the distance": (lambda lps: lps.ask(2**62, IDS), PayloadError, "but the run has 10 LPS rounds"),
    "a round before the first": (lambda lps: lps.ask(-1, IDS), PayloadError, "but the run has 10 LPS rounds"),
    "another limit of values": (lambda lps: lps.ask(1, IDS, most=MOST_EXAMPLES), PayloadError, "earlier over 3072"),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_second_sum_over_other_devices_is_refused(attack: str, tmp_path: Path) -> None:
    lps, (second, error, says) = Attacked(tmp_path), ATTACKS[attack]
    lps.ask(0, IDS)
    with pytest.raises(error, match=says):
        second(lps)
    assert len(lps.sums()) == 1


def test_a_device_that_has_masked_for_some_never_masks_for_others_too(tmp_path: Path) -> None:
    lps = Attacked(tmp_path)
    lps.ask(0, IDS[:3])
    lps.ask(0, IDS[3:])
    with pytest.raises(RosterError, match="also for 'device-003', 'device-004'"):
        lps.ask(1, IDS)
    assert lps.least_revealed() == 3


NEWCOMERS = "newcomers={devices: [4, 5], from_global_round: 2}"
MOVES = (
    "clock=virtual", "topology={lps: 2, devices: [[0, 1, 2, 3], [4, 5, 6]]}",
    "schedule=[{at: 10s, move: {devices: [3], to: lps-1}}]",
)  # fmt: skip


def of_file(*overrides: str, devices: int = DEVICES) -> Experiment:
    """Return the experiment of this file with some keys changed."""
    return parse_experiment(
        f"{{name: masked, partition: {{kind: iid, devices: {devices}, examples_per_device: {MOST_EXAMPLES}}}, "
        f"method: fedavg, secure_aggregation: {{min_devices: {LEAST}}}}}",
        overrides=overrides,
    )


@pytest.mark.parametrize(
    ("overrides", "before", "now", "says"),
    [
        ((NEWCOMERS,), IDS[:4], IDS, ""),
        ((NEWCOMERS,), IDS[:4], IDS[:5], ""),
        ((NEWCOMERS,), IDS, IDS[:4], "without 'device-004', 'device-005'"),
        ((NEWCOMERS,), IDS[:3], IDS[:4], "also for 'device-003'"),
        ((NEWCOMERS,), IDS[:4], IDS[1:], "without 'device-000'"),
        (("deadlines.enrolment={deadline_s: 9, quorum_ratio: 0.5}",), IDS[:4], IDS, ""),
        (("deadlines.enrolment={deadline_s: 9, quorum_ratio: 0.5}",), IDS, IDS[:4], "without 'device-004'"),
        (("deadlines.gps={deadline_s: 9, quorum_ratio: 0.5}",), IDS, IDS[:4], "without 'device-004'"),
        (("training.participation=6",), IDS, IDS[:4], "without 'device-004'"),
        (("training.participation=4",), IDS[:4], IDS[2:], ""),
        (("deadlines.lps.deadline_s=9",), IDS, IDS[1:], ""),
        (MOVES, IDS[:4], IDS[:3], ""),
        (MOVES, IDS[:4], IDS[3:], ""),  # the moved device itself
        (MOVES, IDS[:3], IDS[:4], ""),
        (MOVES, IDS[:4], IDS[1:4], "without 'device-000'"),
        (MOVES, IDS[:3], IDS[:5], "also for 'device-004'"),
    ],
)  # fmt: skip
def test_devices_join_and_leave_a_sum_as_the_file_says(
    overrides: tuple[str, ...], before: list[str], now: list[str], says: str
) -> None:
    experiment = of_file(*overrides, devices=7 if overrides is MOVES else DEVICES)
    memory = MaskedFor(experiment, min(set(before) & set(now)), None)
    memory.note(0, before, 6 * MOST_EXAMPLES)
    if not says:
        return memory.note(1, now, 6 * MOST_EXAMPLES)
    with pytest.raises(RosterError, match=says):
        memory.note(1, now, 6 * MOST_EXAMPLES)
    return memory.note(1, before, 6 * MOST_EXAMPLES)


def test_with_participation_the_devices_of_one_round_stay_the_same_also_after_a_restart(tmp_path: Path) -> None:
    experiment = of_file("training.participation=4")
    MaskedFor(experiment, IDS[0], tmp_path).note(0, IDS[:4], 2048)
    again = MaskedFor(experiment, IDS[0], tmp_path)
    for devices, most in (([IDS[0], *IDS[2:]], 2560), (IDS[:4], 1024)):  # other devices, or another limit of examples
        with pytest.raises(RosterError, match="round 1 for another sum than before"):
            again.note(0, devices, most)
    again.note(1, [IDS[0], *IDS[2:]], 2560)
    again.note(0, IDS[:4], 2048)


def test_the_memory_of_another_run_or_device_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    MaskedFor(FIXED, IDS[0], tmp_path).note(0, IDS, 3072)
    mine, other = (tmp_path / FIXED.run_id / name / "masked" for name in IDS[:2])
    other.parent.mkdir()
    other.write_bytes(mine.read_bytes())
    with pytest.raises(StateError, match=r"has the masked updates of .*device-000.*put the right file back"):
        MaskedFor(FIXED, IDS[1], tmp_path)
    mine.write_bytes(mine.read_bytes()[:-1])
    with pytest.raises(StateError, match="truncated or altered"):
        MaskedFor(FIXED, IDS[0], tmp_path)
    write_sealed(mine, b"[]")
    with pytest.raises(StateError, match="is not a memory of masked updates"):
        MaskedFor(FIXED, IDS[0], tmp_path)


def test_a_device_without_a_folder_for_its_memory_masks_nothing() -> None:
    with pytest.raises(ExperimentError, match=r"secure_aggregation: this device has no folder.*give --state"):
        shields(FIXED, OPEN, None)


members_of = st.one_of(st.just(IDS), st.lists(st.sampled_from(IDS), unique=True, min_size=LEAST))


class LyingLps(RuleBasedStateMachine):
    """Choose every roster, round, model, limit, order, repetition and restart."""

    @initialize()
    def begin(self) -> None:
        self._folder = TemporaryDirectory()
        self.lps = Attacked(Path(self._folder.name))
        self.said: list[tuple[pb.Roster, int, int]] = []

    def teardown(self) -> None:
        self._folder.cleanup()

    @rule(
        members=members_of,
        lps_round=st.one_of(st.integers(0, ROUNDS - 1), st.sampled_from([-1, ROUNDS, 2**62])),
        model=st.integers(0, 1),
        ages=st.lists(st.integers(0, 2), min_size=DEVICES, max_size=DEVICES),
        most=st.sampled_from([DEVICES * MOST_EXAMPLES] * 4 + [1, MOST_EXAMPLES]),
        asked=st.one_of(st.just(IDS), st.lists(st.sampled_from(IDS), unique=True)),
    )
    def ask(self, members: list[str], ages: list[int], most: int, asked: list[str], **when: int) -> None:
        keys = [
            (name, self.lps.keys[name][-1 - age % len(self.lps.keys[name])])
            for name, age in zip(members, ages, strict=False)
        ]
        roster = roster_of(keys, most)
        self.lps.rosters[roster_digest(roster)] = members
        self.said.append((roster, when["lps_round"], when["model"]))
        self._say(self.said[-1], asked)

    @rule(place=st.integers(0, 100), lps_round=st.integers(0, ROUNDS), model=st.integers(0, 1))
    def ask_again(self, place: int, lps_round: int, model: int) -> None:
        """Say something again, or the same roster in another round."""
        if self.said:
            self._say((self.said[place % len(self.said)][0], lps_round, model), IDS)

    @rule(names=st.lists(st.sampled_from(IDS), unique=True, min_size=1))
    def restart(self, names: list[str]) -> None:
        for name in names:
            self.lps.restart(name)

    def _say(self, said: tuple[pb.Roster, int, int], asked: list[str]) -> None:
        roster, lps_round, model = said
        for name in self.lps.rosters[roster_digest(roster)]:
            if name in asked:
                try:
                    self.lps.answer(name, roster, lps_round, model)
                except (PayloadError, RosterError):
                    continue

    @invariant()
    def no_combination_of_sums_is_of_too_few(self) -> None:
        assert self.lps.least_revealed() >= LEAST

    @invariant()
    def a_device_answers_for_one_list_of_devices_and_in_rounds_of_the_run(self) -> None:
        told: dict[str, set[frozenset[str]]] = {name: set() for name in IDS}
        for (digest, lps_round, _), answers in self.lps.answers.items():
            assert 0 <= lps_round < ROUNDS
            for name in answers:
                told[name].add(frozenset(self.lps.rosters[digest]))
        assert all(len(each) <= 1 for each in told.values())

    @invariant()
    def a_key_masks_in_two_global_rounds_at_most_and_older_keys_are_gone(self) -> None:
        used: dict[bytes, set[int]] = {}
        for (digest, lps_round, _), answers in self.lps.answers.items():
            for name, key in self.lps.own_keys[digest].items():
                if name in answers:
                    used.setdefault(key, set()).add(lps_round // 2)
        assert all(len(each) <= 2 for each in used.values())
        assert all(len(masks._secrets) <= 2 for masks in self.lps.masks.values())


TestLyingLps = LyingLps.TestCase
TestLyingLps.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
