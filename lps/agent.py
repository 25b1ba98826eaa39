"""One local parameter server (LPS): its connection to the GPS, and the clusters that it serves."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from fedstrata.clock.device_times import devices_come_to_others
from fedstrata.datasets import dataset_info
from fedstrata.experiment import Experiment
from fedstrata.methods import make_method
from fedstrata.models import build_model
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.time_limits import HOLD_S, hold_s
from fedstrata.rounds import PlainUpdates
from fedstrata.rpc.messages import link_bytes_from_proto
from fedstrata.rules.registry import lps_rule, sends_sums
from fedstrata.streams.streams import streams_of
from fedstrata.tasks import make_task
from fedstrata.trust.call_table import Claim
from fedstrata.trust.names import Peer
from fedstrata.trust.security import Security
from fedstrata.v1 import gps_service_pb2 as pb
from lps.arrivals import clocks
from lps.clusters import Clusters
from lps.holding import LpsParts
from lps.report_files import newest_reports
from lps.session import Session
from lps.spanning.received_streams import accepted_model
from lps.to_gps import GpsClient, NewestPlan


class LpsAgent:
    """Run one LPS from its registration to the end of the run."""

    def __init__(
        self, experiment: Experiment, *, lps_id: str, gps: str, state: Path, metrics: ProcessMetrics, log: EventLog,
        security: Security, arrivals: Path | None = None,
    ) -> None:  # fmt: skip
        """Set `arrivals`, a file with the asynchronous rounds of an earlier run, which this run repeats."""
        self._experiment, self._state, self._metrics, self._log = experiment, state, metrics, log
        self._gps = GpsClient(experiment, lps_id, gps, metrics=metrics, log=log, security=security)
        model = build_model(experiment.model, dataset_info(experiment.data))
        method = make_method(experiment)
        streams = streams_of(experiment, method, model)
        metrics.links.questions = frozenset(question.name for question in method.questions())
        self._parts = LpsParts(
            experiment=experiment,
            method=method,
            streams=streams,
            model=model,
            task=make_task(experiment),
            state_folder=state,
            metrics=metrics,
            executor=ThreadPoolExecutor(1, thread_name_prefix="fold"),
            updates_of=_updates_of(experiment, security),
            rule=lps_rule(experiment),
            clock_of=clocks(experiment, arrivals),
            sends_sums=sends_sums(experiment, spans=streams.spans),
        )
        self._newest_plan = NewestPlan(None if devices_come_to_others(experiment) else HOLD_S)
        self._clusters = Clusters(
            self._gps, self._session_of, self._newest_plan, lps_id, log, advice_on=security.advice_on
        )
        self.handlers, self.knows_clusters = self._clusters.handlers, self._clusters.are_known
        self.held_s = hold_s(experiment.device_count)  # the longest time for which a device's call waits for a reply
        self._may_have_begun = True

    @property
    def model_bytes(self) -> int:
        """The size of a model in bytes, as float32."""
        return self._parts.streams.travelling.float32_bytes

    @property
    def has_its_models(self) -> bool:
        """Return whether this LPS has opened a round of each cluster that it serves. Until then this LPS is not ready,
        because it may still have to fetch a cluster's model from devices.

        The result is also True before devices are grouped, and after the run.
        """
        return self._clusters.are_open(may_have_begun=self._may_have_begun)

    async def close(self) -> None:
        """Close the connection to the GPS, and end the thread that adds updates to the sums."""
        await self._gps.close()
        self._parts.executor.shutdown(wait=False)

    async def register(self, address: str) -> None:
        """Register this LPS and its address at the GPS. Raises HandshakeError if the LPS and the GPS do not trust each
        other.
        """
        self._may_have_begun = await self._gps.register(address)

    async def run(self) -> None:
        """Serve the clusters that the GPS assigns to this LPS until the run is over. `Clusters.serve` describes the
        errors.
        """
        await asyncio.to_thread(self._recall_link_bytes)
        await self._clusters.serve()
        self._metrics.links.end()

    def _recall_link_bytes(self) -> None:
        """Continue the byte counts from before a restart, which are in the saved reports. Each report has all counts of
        this LPS up to the time at which the report was written.
        """
        for report in newest_reports(self._state / self._gps.attempt_id):
            self._metrics.links.go_on_from(link_bytes_from_proto(report.link_bytes))

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        """Return whether a device belongs to the cluster that its message names, as `Clusters.belongs` does."""
        return await self._clusters.belongs(claim, self.held_s)

    def _session_of(self, cluster: pb.Cluster) -> Session:
        log, streams = self._log.bind(cluster=cluster.home_id), self._parts.streams
        accepts_model = partial(accepted_model, self._experiment, streams) if streams.spans else None
        gps = self._gps.of_session(cluster, streams, self._newest_plan, log, accepts_model)
        return Session(self._parts, cluster, gps, log)


def _updates_of(experiment: Experiment, security: Security) -> Callable[[Callable[[str], bool]], PlainUpdates]:
    """Return a function that creates the object for a cluster's updates: `PlainUpdates` or `MaskedUpdates`. The
    function takes `has_member` (see `KeyRing`).

    The package that checks keys is loaded only with secure aggregation.
    """
    secure = experiment.secure_aggregation
    if secure is None:
        return lambda has_member: PlainUpdates()
    from fedstrata.rounds.parent.mask_keys import MaskedUpdates
    from fedstrata.trust.mask_proofs import KeyCheck

    return partial(MaskedUpdates, min_devices=secure.min_devices, check=KeyCheck(experiment.run_id, security.tls).check)
