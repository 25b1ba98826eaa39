"""The state that the GPS wants in Kubernetes. The GPS requests this state until a request succeeds, and then checks it
at intervals.

The API may be absent for a while, a new pod has no labels, and a person may scale by hand. So the GPS remembers the
wanted state. `gps.kubernetes.kubernetes_backend` has the calls to the API.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from fedstrata.process.logs import EventLog
from fedstrata.process.waiting import Changes
from gps.kubernetes.backend import Backend, Standing
from gps.kubernetes.kubernetes_backend import KubernetesApi, Note

NOTES_MAX = 100  # the latest Events that are kept until they can be recorded
FORBIDDEN = 403


@dataclass(frozen=True, kw_only=True)
class Pauses:
    """Hold the seconds between attempts. After each failure the pause doubles, from `first_s` up to `longest_s`. If the
    GPS lacks the permission for a call, the pause is `forbidden_s`. After a success the pause is `look_again_s`.
    """

    first_s: float = 1.0
    longest_s: float = 10.0
    forbidden_s: float = 60.0
    look_again_s: float = 60.0
    shown_s: float = 2.0  # the shortest time between two changes of the Job's labels


@dataclass
class _Wish:
    """Hold one part of the wanted state, and the result of the last attempt."""

    what: str
    attempt: Callable[[], None]
    is_once: bool = False  # if done, not checked again: the next run may want something else
    rest_s: float = 0.0  # the pause after each attempt
    is_new: bool = True
    failures: int = 0
    changes: Changes = field(default_factory=Changes)

    def want(self, attempt: Callable[[], None]) -> None:
        """Replace the wanted state. The function `attempt` tries to bring Kubernetes into the new state."""
        self.attempt, self.is_new = attempt, True
        self.changes.tell()


class Reconciler(Backend):
    """Bring Kubernetes into the wanted state, and keep it there. Each part of the state has its own asyncio job, with
    its own pauses.
    """

    def __init__(
        self, api: KubernetesApi, log: EventLog, pauses: Pauses | None = None, *, release_after_s: float | None = None
    ) -> None:
        """Set `release_after_s`, the seconds from the end of the run until its pods are stopped. None keeps the pods
        running.
        """
        self._api = api
        self.job = api.job
        self._release_after_s = release_after_s
        self._log = log
        self._pauses = pauses or Pauses()
        self._notes: deque[Note] = deque(maxlen=NOTES_MAX)
        self._wishes: dict[str, _Wish] = {}
        self._jobs: list[asyncio.Future[None]] = []

    def scale_lps(self, replicas: int) -> None:
        """Request that this number of LPSs run from now on."""
        self._want("scale", partial(self._scale, replicas))

    def label_pods(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        """Label each pod with the LPSs of its devices. A later pod with the same name gets the same labels."""
        if lps_ids:
            self._want("label", partial(self._label, dict(lps_ids)))

    def show(self, standing: Standing) -> None:
        """Show the state of the run on the run's Job."""
        if self.job:
            self._want("show", partial(self._api.show, standing), rest_s=self._pauses.shown_s)

    def record_event(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an Event with the present time in the background, as soon as Kubernetes accepts the Event."""
        self._notes.append(Note(reason=reason, message=message, is_warning=is_warning, at=datetime.now(UTC)))
        self._want("event", self._record)

    def release_pods(self) -> None:
        """Scale LPSs and devices to 0, after a delay in which Prometheus can collect their last metrics."""
        if self._release_after_s is not None:
            self._jobs.append(asyncio.ensure_future(self._release(self._release_after_s)))

    async def _release(self, after_s: float) -> None:
        await Changes().wait_until(lambda: False, after_s)
        self._want("scale", partial(self._scale, 0))
        self._want("release", self._stop_devices, is_once=True)

    async def close(self) -> None:
        """Stop all attempts to bring Kubernetes into the wanted state."""
        for job in self._jobs:
            job.cancel()
        await asyncio.gather(*self._jobs, return_exceptions=True)

    def _want(self, what: str, attempt: Callable[[], None], *, is_once: bool = False, rest_s: float = 0.0) -> None:
        wish = self._wishes.get(what)
        if wish is None:
            wish = self._wishes[what] = _Wish(what, attempt, is_once=is_once, rest_s=rest_s)
            self._jobs.append(asyncio.ensure_future(self._hold(wish)))
        wish.want(attempt)

    async def _hold(self, wish: _Wish) -> None:
        while True:
            wish.is_new = False
            pause_s = await self._attempt(wish)
            if wish.is_once and not wish.failures:
                return
            if wish.rest_s:
                await Changes().wait_until(lambda: False, wish.rest_s)
            await wish.changes.wait_until(lambda: wish.is_new, pause_s)

    async def _attempt(self, wish: _Wish) -> float:
        """Make one attempt. Return the seconds until the next attempt, which begins earlier if the wanted state
        changes.
        """
        try:
            await asyncio.to_thread(wish.attempt)
        except Exception as error:  # the client raises its own errors, urllib3's and socket errors
            return self._failed(wish, error)
        if wish.failures:
            self._log.info("kubernetes_answers_again", call=wish.what, attempts=wish.failures + 1)
        wish.failures = 0
        return self._pauses.look_again_s

    def _failed(self, wish: _Wish, error: Exception) -> float:
        """Count a failed attempt. Only the first of several failures in a row is logged. Return the pause before the
        next attempt, in seconds.
        """
        wish.failures += 1
        if wish.failures == 1:
            reason = " ".join(str(getattr(error, "reason", None) or error).split())[:300]
            self._log.warning(
                "kubernetes_refused", call=wish.what, reason=reason, means="tried again",
                instead=self._api.instead_of(wish.what),
            )  # fmt: skip
        if getattr(error, "status", None) == FORBIDDEN:
            return self._pauses.forbidden_s
        return min(self._pauses.longest_s, self._pauses.first_s * 2.0 ** min(wish.failures - 1, 16))

    # --- attempts, each in a thread -----------------------------------------------------------

    def _scale(self, replicas: int) -> None:
        if self._api.scale_lps(replicas):
            self._log.info("lps_scaled", replicas=replicas)

    def _stop_devices(self) -> None:
        if self._api.stop_devices():
            self._log.info("devices_released")

    def _label(self, lps_ids: Mapping[str, Sequence[str]]) -> None:
        changed = self._api.label_pods(lps_ids)
        if changed:
            self._log.info("pods_labelled", pods=changed)

    def _record(self) -> None:
        while self._notes:
            note = self._notes[0]
            self._api.record(note)
            if self._notes and self._notes[0] is note:  # otherwise newer notes have pushed it out
                self._notes.popleft()
