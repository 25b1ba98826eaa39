"""One run on a board: the checks of its offer, its files, and its device process."""

import asyncio
import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from fedstrata.errors import CertificateError, ExperimentError, FedstrataError, OutputError, StateError
from fedstrata.experiment.keys_of_files import LAST_NAMES
from fedstrata.experiment.sections import PLUGIN
from fedstrata.experiment.yaml_files import read_yaml
from fedstrata.process.address import split_address
from fedstrata.process.child_processes import STOP_DEADLINE_S, OwnedProcess, ProcessSpec, Restart
from fedstrata.process.logs import EventLog
from fedstrata.process.quoting import brief, quoted
from fedstrata.process.waiting import Backoff
from fedstrata.store import read_sealed, write_aside, write_sealed
from fedstrata.trust.authority import Issued
from fedstrata.trust.tls_files import CA, CERT, KEY, TlsFiles, tls_arguments, write_private
from fedstrata.v1 import fleet_service_pb2 as pb

DEVICES = re.compile(r"[0-9]{1,6}-[0-9]{1,6}")
END = "end"
LOOK_AT_CLOCK_S = 60.0  # how often an expiry is checked again: a board's clock may be set after the start


@dataclass(frozen=True, kw_only=True)
class Owned:
    """Hold what a board contributes to every run: its key in PEM, its data, and the names of the users' own code that
    experiments may load on this board.
    """

    key: bytes = field(repr=False)
    data: Path | None
    own_code: frozenset[str]


def experiment_here(text: str, owned: Owned) -> str:
    """Return an offered experiment as this board runs it: with the board's own data, and without downloads. The run's
    id stays the same.

    Raises:
        ExperimentError: the text is not an experiment, or names a file or code that the board does not allow.
    """
    try:
        document = read_yaml(text)
    except ValueError as error:
        raise ExperimentError(f"the offered experiment {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("data"), dict):
        raise ExperimentError("the offered experiment is not a resolved experiment file")
    for key, value in _entries(document):
        if PLUGIN.match(value) and value not in owned.own_code:
            raise ExperimentError(
                f"the experiment names code, {quoted(value)}, that the board does not allow; give it in --own-code"
            )
        if key in LAST_NAMES:
            raise ExperimentError(f"the experiment names a file, {key}: {quoted(value)}; boards get no files")
    data = {key: value for key, value in document["data"].items() if key not in ("folder", "download")}
    data["download"] = False
    if data.get("name") == "folder":
        if owned.data is None:
            raise ExperimentError("the experiment needs the board's own data; start the agent with --data-folder")
        data["folder"] = str(owned.data)
    return yaml.safe_dump({**document, "data": data}, sort_keys=False)


def _entries(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield each text in a document, with its key.

    Raises:
        ExperimentError: a value has a kind, such as bytes or a set, that experiment files do not have. The device might
            read such a value as a text.
    """
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, dict):
        for name, each in value.items():
            if not isinstance(name, str):
                raise ExperimentError(f"the experiment has a key that is not text: {quoted(str(name))}")
            yield from _entries(each, name)
    elif isinstance(value, list):
        for each in value:
            yield from _entries(each, key)
    elif not isinstance(value, int | float | None):
        raise ExperimentError(f"the experiment has a value of kind {type(value).__name__} under {quoted(key)}")


class HostedRun:
    """Run the device process for one offer of a run. When the run is over, the process is not started again for this
    offer, not even after a restart of the board's agent.
    """

    def __init__(self, offer: pb.Offer, folder: Path, log: EventLog) -> None:
        self.offer = offer
        self._folder = folder
        self._log = log.bind(offer=offer.offer_id)
        self._digest = hashlib.sha256(offer.SerializeToString(deterministic=True)).hexdigest()
        self._process: OwnedProcess | None = None
        self._job: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._expired: CertificateError | None = None
        self._trouble = ""  # the error for which the run is tried again
        self._end = self._read_end()

    def _read_end(self) -> tuple[str, str] | None:
        """Return the final state of this offer's run, and the reason. If the run has not ended, return None."""
        with suppress(StateError):
            digest, state, reason = read_sealed(self._folder / END).decode().split("\n", 2)
            if digest == self._digest:
                return state, reason
        return None

    @property
    def is_over(self) -> bool:
        """Return whether the board has no more to do for this offer."""
        return self._end is not None

    def told(self) -> pb.BoardRun:
        """Return the state of the run for the fleet. If the run has failed or is being tried again, the error is
        included.
        """
        state, reason = self._end or ("running" if self._job else "waiting", self._trouble)
        return pb.BoardRun(offer_id=self.offer.offer_id, state=state, reason=reason)

    def start(self, owned: Owned, changed: Callable[[], None]) -> None:
        """Start the device process, unless it is running or over. Call `changed` when the run has ended, and when an
        attempt has failed with a new error.
        """
        if self._job is None and self._end is None:
            self._job = asyncio.create_task(self._run(owned, changed))

    async def _run(self, owned: Owned, changed: Callable[[], None]) -> None:
        backoff, end = Backoff(), ("ended", "")
        while True:
            try:
                await self._train(owned)
                break
            except (OSError, FedstrataError) as error:
                reason = brief(str(error))
                if not self._may_pass(error):
                    end = ("failed", reason)
                    break
            if reason != self._trouble:
                self._trouble = reason
                self._log.warning("trying_again", reason=reason)
                changed()
            await backoff.pause()
            if self._is_stopping:
                return
        if self._is_stopping and end[0] == "ended":
            return
        self._end = end
        self._log.info(end[0], reason=end[1])
        try:
            write_sealed(self._folder / END, "\n".join((self._digest, *end)).encode())
        except StateError as error:  # after a restart the agent tries the run once more
            self._log.warning("end_not_written", reason=str(error))
        changed()

    async def _train(self, owned: Owned) -> None:
        """Run the device process until it exits or is stopped.

        Raises:
            CertificateError: the offer's certificate has expired.
            FedstrataError: something in the offer is not allowed.
        """
        spec = self._prepared(owned)
        if self._is_stopping:
            return
        self._trouble = ""
        self._process = process = OwnedProcess(spec, self._folder, self._note_restart)
        self._log.info("started", devices=self.offer.devices)
        expiry = asyncio.create_task(self._end_at_expiry(process))
        try:
            await process.keep_alive()
        finally:
            expiry.cancel()
        if self._expired is not None:
            raise self._expired

    async def _end_at_expiry(self, process: OwnedProcess) -> None:
        """Wait until the certificate has expired by the board's clock, then end the device process. The clock may be
        set during the wait, so it is read again and again.
        """
        left = self._valid_for()
        while left > timedelta():
            await asyncio.sleep(min(left.total_seconds(), LOOK_AT_CLOCK_S))
            left = self._valid_for()
        self._expired = self._expiry(left)
        process.terminate()
        await asyncio.sleep(STOP_DEADLINE_S)
        process.kill()

    def _valid_for(self) -> timedelta:
        """Return how long the offer's certificate is still valid. Raises CertificateError if the certificate cannot be
        read.
        """
        try:
            return Issued.parse(self.offer.certificate, "the offer").until - datetime.now(UTC)
        except ValueError:
            raise CertificateError("the offer has a damaged certificate; offer the run again") from None

    def _expiry(self, left: timedelta) -> CertificateError:
        """Return the error for a certificate that has expired. `left` is the time until the expiry, which is 0 or
        negative.
        """
        now = datetime.now(UTC)
        return CertificateError(
            f"the run's certificate for this board expired on {now + left:%Y-%m-%d %H:%M:%S} UTC, and the "
            f"board's clock says {now:%Y-%m-%d %H:%M:%S}; fedstrata run --resume or fleet offer issues a new one"
        )

    def _may_pass(self, error: Exception) -> bool:
        """Return whether the same offer may work later in spite of this error. For example, a full disk may get free
        space, or the board's clock, which is behind, may be corrected.
        """
        if isinstance(error, CertificateError):
            with suppress(CertificateError, ValueError):
                issued = Issued.parse(self.offer.certificate, "the offer").certificate
                return datetime.now(UTC) < issued.not_valid_before_utc
            return False
        return isinstance(error, OSError | OutputError | StateError)

    def _prepared(self, owned: Owned) -> ProcessSpec:
        """Write the files of the device process, and return how to start the process.

        Raises:
            FedstrataError: something in the offer is not allowed.
        """
        offer, tls, file = self.offer, self._folder / "tls", self._folder / "experiment.yaml"
        split_address(offer.gps)
        if not DEVICES.fullmatch(offer.devices):
            raise ExperimentError(f"the offer names devices {quoted(offer.devices)}; expected a range such as 0-4")
        experiment = experiment_here(offer.experiment, owned)
        if (left := self._valid_for()) <= timedelta():
            raise self._expiry(left)
        write_private(tls, {KEY: owned.key, CERT: offer.certificate, CA: offer.ca})
        TlsFiles.load(tls)
        with write_aside(file) as written:
            written.write(experiment.encode())
        words = {"experiment": file, "gps": offer.gps, "devices": offer.devices, "state": self._folder / "state"}
        options = (word for name, value in words.items() for word in (f"--{name}", str(value)))
        return ProcessSpec(
            name="device",
            command=("device", *options, "--exit-with-parent", *tls_arguments(tls)),
            endpoints={"http": "--http"},
            may_finish=True,
            may_move=True,
        )

    def _note_restart(self, restart: Restart) -> None:
        self._log.warning("restarted", cause=restart.cause, count=restart.count)

    async def stop(self) -> None:
        """End the device process, and return when it has ended. Its state stays in its folder."""
        self._is_stopping = True
        if self._process is not None:
            self._process.terminate()
        if self._job is not None:
            _, alive = await asyncio.wait({self._job}, timeout=STOP_DEADLINE_S)
            if alive and self._process is not None:
                self._process.kill()
            await self._job

    async def withdraw(self) -> None:
        """End the device process of an offer that was withdrawn. Delete the note that the run has ended, so that the
        same run can be offered again.

        Set the time of the run's folder to now. The agent deletes the folders with the oldest times first.
        """
        await self.stop()
        (self._folder / END).unlink(missing_ok=True)
        with suppress(FileNotFoundError):  # the folder may have been deleted
            os.utime(self._folder)
