"""The clusters that the GPS assigns to a local parameter server (LPS). The LPS begins or stops serving a cluster when
the GPS changes the assignment.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from functools import partial

from fedstrata.errors import FedstrataError, NotAllowedError, WrongRunError
from fedstrata.process.logs import EventLog
from fedstrata.trust.call_table import Claim
from fedstrata.v1 import gps_service_pb2 as pb
from lps.kept.model_search import Handler, ModelSearch
from lps.session import Session
from lps.slow_devices import Waits
from lps.to_gps import GpsClient, NewestPlan


@dataclass
class _Service:
    """Hold the session of one cluster that this LPS serves, and the job that runs the session. The service ends at the
    latest when the GPS gives the cluster to another LPS.
    """

    session: Session
    job: "asyncio.Task[None] | None" = None
    is_open: bool = False  # whether the session has opened a round

    def cancel(self) -> None:
        if self.job is not None and self.job is not asyncio.current_task():
            self.job.cancel()


class Clusters:
    """Hold the sessions of an LPS. A session runs the rounds of one cluster. Also hold, for each cluster, the object
    that answers the calls of the cluster's devices (`handlers`).
    """

    def __init__(
        self, gps: GpsClient, session_of: Callable[[pb.Cluster], Session], newest_plan: NewestPlan, lps_id: str,
        log: EventLog, *, advice_on: Callable[[str], str],
    ) -> None:  # fmt: skip
        """Set `session_of`, the function that returns the session of a cluster. For `advice_on`, see `Waits`."""
        self.handlers: dict[str, Handler] = {}
        self.are_known = asyncio.Event()
        self._gps = gps
        self._session_of = session_of
        self._newest_plan = newest_plan
        self._lps_id = lps_id
        self._log = log
        self._waits = Waits(self.handlers, advice_on)
        self._services: dict[str, _Service] = {}
        self._is_over = False

    def are_open(self, *, may_have_begun: bool) -> bool:
        """Return True if this LPS has opened a round of each cluster that it serves, or if the run is over.

        If this LPS serves no cluster, the result is True. After a restart, however, the GPS may have assigned clusters
        that this LPS does not know yet. Set `may_have_begun` in this case. The result is then False until the GPS has
        sent the list of clusters.
        """
        is_known = self.are_known.is_set() or not may_have_begun
        return self._is_over or (is_known and all(service.is_open for service in self._services.values()))

    async def belongs(self, claim: Claim, held_s: float) -> bool:
        """Return whether a device belongs to the cluster that its message names. If this LPS serves the cluster but
        does not know the device, wait at most `held_s` seconds for a newer list of devices.

        If this LPS does not serve the cluster, return True. The servicer checks this case later, and raises an error
        that names the cause.
        """
        return await self._newest_plan.changes.wait_until(lambda: self._has_member(claim), held_s if claim.id else 0)

    def _has_member(self, claim: Claim) -> bool:
        service = self._services.get(claim.home_id or "")
        return service is None or service.session.members.has(claim.id or "")

    # --- until the run is over ----------------------------------------------------------------

    async def serve(self) -> None:
        """Serve the clusters that the GPS assigns to this LPS until the run is over.

        Raises:
            NotAllowedError: the GPS refuses this LPS. The devices then ask the GPS for another LPS.
            WrongRunError: the GPS has begun the run again, or another run. The devices ask the GPS and learn this, too.
        """
        telling = asyncio.ensure_future(self._waits.tell(lambda: self._fetch(0)))
        try:
            async with asyncio.TaskGroup() as jobs:
                async for clusters in self._changed():
                    self._follow(clusters, jobs)
        except* FedstrataError as errors:
            await self._give_up(errors.exceptions[0])
        finally:
            telling.cancel()
            self._is_over = True

    async def _fetch(self, known_version: int) -> pb.FetchClustersResponse:
        """Return the GPS's reply about the clusters of this LPS, as soon as the GPS has a plan that is newer than
        `known_version`. Also report to the GPS for which devices this LPS waits.
        """
        return await self._gps.clusters(known_version, self._waits.now())

    async def _give_up(self, error: BaseException) -> None:
        """Inform devices and the GPS that this LPS cannot continue, and give the reason. If the GPS refuses this LPS or
        is in another attempt or run, stop serving all clusters, and raise the error.
        """
        if isinstance(error, NotAllowedError | WrongRunError):
            for name in list(self._services):
                self._drop(name)
            raise error
        reason = f"{self._lps_id}: {error}"
        self._log.error("run_stopped", reason=reason)
        for service in self._services.values():
            service.session.server.finish(reason)
        await self._gps.fail(reason)

    async def _changed(self) -> AsyncIterator[Iterable[pb.Cluster]]:
        """Yield the clusters of this LPS whenever the GPS has a new plan, until the run is over.

        Raises:
            RunStoppedError: the run has ended without a result.
        """
        while True:
            reply = await self._fetch(self._newest_plan.version)
            if reply.is_over:
                for name in [name for name, service in self._services.items() if not service.is_open]:
                    self._leave_out(name)
                return
            if reply.is_grouped and reply.plan_version != self._newest_plan.version:
                self._newest_plan.heard(reply)
                yield reply.clusters
                self.are_known.set()

    def _follow(self, clusters: Iterable[pb.Cluster], jobs: asyncio.TaskGroup) -> None:
        """Apply a new plan. Stop serving clusters that left this LPS or that must begin again, update the devices of
        the remaining clusters, and begin new clusters.
        """
        given = {cluster.home_id: cluster for cluster in clusters}
        for name, service in list(self._services.items()):
            if not service.session.members.goes_on_with(given.get(name)):
                self._drop(name)
        for name, cluster in given.items():
            known = self._services.get(name)
            if known is not None:
                known.session.take_members(cluster)
                continue
            session = self._session_of(cluster)
            self._log.info("cluster_served", cluster=name, devices=len(cluster.members), term=cluster.term)
            self._services[name] = service = _Service(session)
            if not session.holding.may_recover():
                self.handlers[name] = session.server  # early calls of devices wait until a round is open
            service.job = jobs.create_task(self._serve(name, service))

    async def _serve(self, name: str, service: _Service) -> None:
        session = service.session
        try:
            await session.holding.recover(partial(self.handlers.__setitem__, name))
            self.handlers[name], service.is_open = session.server, True
            await session.run()
        except FedstrataError as error:
            reply = await self._present()
            if reply is None or (_has(reply, name, session.term) and not reply.is_over):
                raise
            self._log.warning("cluster_lost", cluster=name, reason=str(error))
            if self._services.get(name) is service:
                (self._leave_out if reply.is_over else self._drop)(name)
        finally:
            session.gps.uplink.close()

    async def _present(self) -> pb.FetchClustersResponse | None:
        """Return the GPS's present list of this LPS's clusters. If the GPS does not answer, return None. Raises
        WrongRunError if the GPS is in another attempt or run.

        Call this method after a session has failed. The list shows whether the GPS has given the cluster to another
        LPS, because this LPS was paused or refused.
        """
        try:
            return await self._fetch(0)
        except WrongRunError:
            raise
        except FedstrataError:
            return None

    def _drop(self, name: str) -> None:
        """Stop serving a cluster. The cluster's devices then ask the GPS which LPS serves them."""
        service = self._services.pop(name)
        handler = self.handlers.pop(name, None)
        if handler is not None:
            handler.release()
        service.cancel()
        self._log.info("cluster_dropped", cluster=name, term=service.session.term)

    def _leave_out(self, name: str) -> None:
        """Stop serving a cluster, because the run has ended before this LPS was able to finish the cluster's rounds.
        Inform the cluster's devices that the run has ended without the cluster.
        """
        service, handler = self._services[name], self.handlers.get(name)
        service.session.server.finish()
        self.handlers[name] = service.session.server
        if isinstance(handler, ModelSearch):
            handler.release()
        service.cancel()
        self._log.warning("cluster_left_out", cluster=name, term=service.session.term)


def _has(reply: pb.FetchClustersResponse, name: str, term: int) -> bool:
    return any((cluster.home_id, cluster.term) == (name, term) for cluster in reply.clusters)
