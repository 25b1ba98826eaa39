"""The state that a device keeps from round to round: named arrays in files with checksums. The arrays never leave the
device.

Each LPS round of an attempt has one file. A JSON header gives the run, the device, the round, and the name, type and
shape of each array. The bytes of the arrays follow.
"""

import json
import math
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedstrata.errors import PluginError, StateError
from fedstrata.process.logs import EventLog
from fedstrata.store import clear_asides, read_sealed, write_sealed

Arrays = dict[str, NDArray[Any]]
DTYPES = ("<f4", "<f8", "<i8")
LENGTH_BYTES = 8  # bytes of the number that gives the header's length


class PersonalStore:
    """Keep one device's states by LPS round, each in a file that is either complete or absent."""

    def __init__(self, folder: Path, run_id: str, device_id: str) -> None:
        """Use this folder for the device's files. The folder is created when the first file is saved. Call `enter`
        before any state is read or saved.
        """
        self._folder = folder
        self._states: Path  # of the present attempt
        self._owner = {"run_id": run_id, "device_id": device_id}
        self._log = EventLog("personal", device=device_id)
        self._whole: set[int] = set()  # rounds whose complete file this process has written or read
        clear_asides(folder)

    def enter(self, attempt: str) -> None:
        """Read and save the states of this attempt of the run. Each attempt begins without a state."""
        self._states = self._folder / attempt
        clear_asides(self._states)

    def at(self, lps_round: int) -> tuple[int, Arrays] | None:
        """Return the newest complete state of round `lps_round` or of an earlier round: the number of its round, and
        its arrays. If there is no such state, return None.

        If a file is damaged, or belongs to another run or device, the log names the file, and the file is ignored.
        """
        for known in self._rounds():
            if known <= lps_round:
                with suppress(StateError):
                    return known, self._read(known)
        return None

    def save(self, lps_round: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Save the state with which the device starts an LPS round. Delete the states of later rounds, because these
        rounds will be repeated.

        The file survives the end of the process, but may be lost if the machine crashes.

        Raises:
            PluginError: an array has a type that cannot be saved.
            StateError: the disk is full or refuses to write. The states of earlier rounds are unchanged.
        """
        data = self._packed(lps_round, arrays)
        for later in self._rounds():
            if later > lps_round:
                self._path(later).unlink(missing_ok=True)
        write_sealed(self._path(lps_round), data, durable=False)
        self._whole.add(lps_round)

    def prune(self, before_round: int) -> None:
        """Delete the states of rounds before `before_round`, except the newest complete state among them. Damaged files
        that are newer than this state stay, too, so that somebody can look at them.
        """
        older = [known for known in self._rounds() if known < before_round]
        while older and not self._is_whole(older[0]):
            del older[0]  # a damaged file stays, so that somebody can look at it
        for known in older[1:]:
            self._path(known).unlink(missing_ok=True)

    def mark_born(self) -> None:
        """Write a marker file, which says that this device keeps state in this run. If the GPS knows the device later,
        but the marker is missing, the device's state was lost. All attempts of the run have one marker, because the
        device writes it before it knows the attempt.

        Like a state, the marker survives the end of the process, but may be lost if the machine crashes.
        """
        if not self.was_born():
            write_sealed(self._marker, json.dumps(self._owner).encode(), durable=False)

    def was_born(self) -> bool:
        """Return whether the marker of this run and device exists. If the marker is damaged, return True."""
        if not self._marker.exists():
            return False
        try:
            return bool(json.loads(read_sealed(self._marker)) == self._owner)
        except StateError as error:
            self._log.warning("personal_state_damaged", reason=str(error))
            return True

    @property
    def _marker(self) -> Path:
        return self._folder / "born"

    def _path(self, lps_round: int) -> Path:
        return self._states / f"{lps_round:06d}.personal"

    def _rounds(self) -> list[int]:
        """Return the rounds with a file, newest first."""
        stems = (path.stem for path in self._states.glob("*.personal"))
        return sorted((int(stem) for stem in stems if stem.isdecimal()), reverse=True)

    def _is_whole(self, lps_round: int) -> bool:
        if lps_round not in self._whole:
            with suppress(StateError):
                self._read(lps_round)
        return lps_round in self._whole

    def _packed(self, lps_round: int, arrays: Mapping[str, NDArray[Any]]) -> bytes:
        header = json.dumps({**self._owner, "lps_round": lps_round, "arrays": _described(arrays)}).encode()
        content = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")).tobytes() for array in arrays.values()]
        return b"".join([len(header).to_bytes(LENGTH_BYTES, "little"), header, *content])

    def _read(self, lps_round: int) -> Arrays:
        path = self._path(lps_round)
        try:
            arrays = self._unpacked(path, lps_round, memoryview(read_sealed(path)))
        except StateError as error:
            self._whole.discard(lps_round)
            self._log.warning("personal_state_damaged", lps_round=lps_round, reason=str(error))
            raise
        self._whole.add(lps_round)
        return arrays

    def _unpacked(self, path: Path, lps_round: int, data: memoryview) -> Arrays:
        """Return copies of the arrays in the content of a file. Raises StateError, which names the file, if the content
        is not this device's state of this round.
        """
        start = LENGTH_BYTES + int.from_bytes(data[:LENGTH_BYTES], "little")
        header, described = _header(path, bytes(data[LENGTH_BYTES:start]))
        expected = {**self._owner, "lps_round": lps_round}
        if header != expected:
            raise StateError(f"{path} is the state of {header}, expected {expected}; put the right file back")
        sizes = [math.prod(shape) * np.dtype(dtype).itemsize for _, dtype, shape in described]
        if sum(sizes) != len(data) - start:
            raise StateError(
                f"{path} has {len(data) - start} bytes of arrays, but its header says {sum(sizes)}; put the file back"
            )
        arrays = {}
        for (name, dtype, shape), size in zip(described, sizes, strict=True):
            arrays[name] = np.frombuffer(bytearray(data[start : start + size]), dtype).reshape(shape)
            start += size
        return arrays


def _header(path: Path, text: bytes) -> tuple[dict[str, Any], list[tuple[str, str, list[int]]]]:
    """Return the owner and the round of a state file, and the name, type and shape of each array. Raises StateError if
    the header is damaged.
    """
    try:
        header = json.loads(text)
        described = [(str(name), DTYPES[DTYPES.index(dtype)], [int(n) for n in shape])
                     for name, dtype, shape in header.pop("arrays")]  # fmt: skip
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StateError(f"{path} does not have the header of a personal state; put the file back") from None
    return header, described


def _described(arrays: Mapping[str, NDArray[Any]]) -> list[tuple[str, str, list[int]]]:
    """Return each array's name, type and shape. Raises PluginError for a type that cannot be saved."""
    described = [(name, array.dtype.newbyteorder("<").str, list(array.shape)) for name, array in arrays.items()]
    for name, dtype, _ in described:
        if dtype not in DTYPES:
            raise PluginError(f"personal state {name!r} has type {dtype}; give float32, float64 or int64")
    return described


class KeptInMemory:
    """Keep one device's states by LPS round in memory, for a device without a folder. The states are lost when the
    process ends.
    """

    def __init__(self) -> None:
        self._states: dict[int, Arrays] = {}

    def enter(self, attempt: str) -> None:
        """Do nothing, because a process takes part in one attempt only."""

    def at(self, lps_round: int) -> tuple[int, Arrays] | None:
        """Return the newest state of round `lps_round` or of an earlier round: the number of its round, and its arrays.
        If there is no such state, return None.
        """
        known = max((number for number in self._states if number <= lps_round), default=None)
        if known is None:
            return None
        return known, {name: array.copy() for name, array in self._states[known].items()}  # a round may be repeated

    def save(self, lps_round: int, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Keep the state with which the device starts an LPS round, and delete the states of later rounds. Raises
        PluginError if an array has a type that `PersonalStore` cannot save.
        """
        _described(arrays)
        self._states = {number: state for number, state in self._states.items() if number <= lps_round}
        self._states[lps_round] = {name: array.copy() for name, array in arrays.items()}

    def prune(self, before_round: int) -> None:
        """Delete the states of rounds before `before_round`, except the newest of them."""
        newest = max((number for number in self._states if number < before_round), default=before_round)
        self._states = {number: state for number, state in self._states.items() if number >= newest}

    def mark_born(self) -> None:
        """Do nothing, because a marker in memory would be lost together with the states."""

    def was_born(self) -> bool:
        """Return False, because a new process has none of the device's earlier states. So if the GPS knows the device,
        the device reports its state as lost.
        """
        return False
