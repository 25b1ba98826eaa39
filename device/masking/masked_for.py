"""The memory of a device under secure aggregation: for which devices it has masked its updates.

The difference of two sums reveals the updates of the devices that are in only one of the sums. The sums may even come
from different rounds, if the models of these rounds are alike. So a device masks all its updates for the same devices,
except for changes that the experiment file announces. The memory is written to disk before a masked update is sent, so
it survives restarts. All attempts of a run share it, because their models are alike
(docs/decisions/secure-aggregation.md).
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Self

from fedstrata.clock.device_times import Homes, Presence
from fedstrata.errors import PayloadError, RosterError, StateError
from fedstrata.experiment import Experiment
from fedstrata.process.quoting import quoted
from fedstrata.store import read_sealed, write_sealed

MOST_NAMED = 5  # devices that an error message names


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Hold the ids of the devices that may be new or missing in the sum of a round, compared with the previous round's
    sum.
    """

    joining: frozenset[str]
    leaving: frozenset[str]

    @classmethod
    def of(cls, experiment: Experiment, device_id: str) -> Self:
        """Return the changes that this device can see in a run of the experiment."""
        ids, training = experiment.device_ids(), experiment.training
        everybody = frozenset(ids)
        moving = frozenset(ids[index] for index in Homes(experiment).moving)
        asks_some = excludes(experiment) or not training.asks_all(experiment.device_count)
        if asks_some or device_id in moving:  # at another LPS, a moved device sees other devices
            return cls(joining=everybody, leaving=everybody)
        leaving = moving | {ids[index] for index in Presence(experiment).leaving}
        enrolment = experiment.deadlines.enrolment
        if enrolment.deadline_s is not None or enrolment.quorum_ratio < 1:
            return cls(joining=everybody, leaving=leaving)
        return cls(joining=leaving | {ids[index] for index in experiment.newcomer_indexes}, leaving=leaving)

    @property
    def is_none(self) -> bool:
        """Return whether every round's sum is over the same devices."""
        return not self.joining and not self.leaving


def excludes(experiment: Experiment) -> bool:
    """Return whether an LPS may close a round without some of its devices."""
    deadline = experiment.deadlines.lps
    return deadline.deadline_s is not None or deadline.quorum_ratio < 1


class MaskedFor:
    """Remember the list of devices for which one device has masked its updates, and refuse other lists."""

    def __init__(self, experiment: Experiment, device_id: str, folder: Path | None) -> None:
        """Read the device's memory from a file in `folder`. If `folder` is None, the memory ends with the process.

        Raises:
            StateError: the file is damaged, or belongs to another run or device.
        """
        self._changes, self._excludes = Changes.of(experiment, device_id), excludes(experiment)
        self._lps_rounds = experiment.training.lps_rounds
        self._owner = {"run_id": experiment.run_id, "device_id": device_id}
        self._path = None if folder is None else folder / experiment.run_id / device_id / "masked"
        self._devices: frozenset[str] = frozenset()  # of the newest sum
        self._max_examples = 0
        self._rounds: dict[str, str] = {}  # if sums have different devices: by LPS round, the digest of its sum
        if self._path is not None and self._path.exists():
            self._read(self._path)

    def check(self, devices: Collection[str], max_examples: int) -> None:
        """Check that this device may mask an update for these devices, in a sum over at most `max_examples` examples.

        Raises:
            PayloadError: `max_examples` has changed, which would reveal how large this device's update is.
            RosterError: the difference between this sum and an earlier sum would reveal updates.
        """
        now = frozenset(devices)
        if not self._devices:
            return
        gone, new = self._devices - now - self._changes.leaving, now - self._devices - self._changes.joining
        if gone or new:
            word, which = ("without", gone) if gone else ("also for", new)
            raise RosterError(
                f"the LPS asks to mask an update {word} {quoted(*sorted(which)[:MOST_NAMED])}, unlike before. The two "
                "sums would reveal updates, and the experiment file announces no such change; this device waits for "
                "the first list (if the run has begun again, give it another seed)"
            )
        if self._changes.is_none and max_examples != self._max_examples:
            raise PayloadError(
                f"the LPS asks to mask an update for a sum over {max_examples} examples, and earlier over "
                f"{self._max_examples}: this LPS lies"
            )

    def note(self, lps_round: int, devices: Collection[str], max_examples: int) -> None:
        """Remember, also on disk, that this device masks its update of an LPS round for these devices.

        Raises:
            PayloadError: the run has no such round.
            RosterError: the update of this round was already masked for another sum. If deadlines can exclude devices,
                this is not an error.
            StateError: the disk is full or refuses to write.
            FedstrataError: the errors of `check`.
        """
        self.check(devices, max_examples)
        if not 0 <= lps_round < self._lps_rounds:
            raise PayloadError(
                f"the LPS asks for an update of LPS round {lps_round + 1}, but the run has {self._lps_rounds} LPS "
                "rounds: this LPS lies"
            )
        if self._excludes:  # the LPS must ask again for the update, without the excluded devices
            return
        now, rounds = frozenset(devices), self._rounds
        if not self._changes.is_none:
            found = sha256("\n".join([str(max_examples), *sorted(now)]).encode()).hexdigest()
            if rounds.get(str(lps_round), found) != found:
                raise RosterError(
                    f"the LPS asks to mask the update of round {lps_round + 1} for another sum than before. The two "
                    "sums would reveal it, and deadlines.lps excludes no device; this device waits for the first list"
                )
            rounds = {**rounds, str(lps_round): found}
        if (now, max_examples, rounds) != (self._devices, self._max_examples, self._rounds):
            self._write(now, max_examples, rounds)

    def _read(self, path: Path) -> None:
        try:
            document = json.loads(read_sealed(path))
            devices, most = frozenset(document.pop("devices")), int(document.pop("max_examples"))
            rounds = dict(document.pop("rounds"))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise StateError(
                f"{path} is not a memory of masked updates; put the right file back, or give the run another seed"
            ) from None
        if document != self._owner:
            raise StateError(
                f"{path} has the masked updates of {document}; expected {self._owner}; put the right file back"
            )
        self._devices, self._max_examples, self._rounds = devices, most, rounds

    def _write(self, devices: frozenset[str], max_examples: int, rounds: dict[str, str]) -> None:
        if self._path is not None:
            document = {**self._owner, "devices": sorted(devices), "max_examples": max_examples, "rounds": rounds}
            write_sealed(self._path, json.dumps(document).encode())
        self._devices, self._max_examples, self._rounds = devices, max_examples, rounds
