"""The LPS that serves each cluster. This is the cluster's own LPS or, while that LPS is absent, the LPS that has
adopted the cluster.
"""

from collections.abc import Callable, Container
from dataclasses import dataclass

from fedstrata.errors import UnknownChildError, WrongRunError
from fedstrata.experiment import Experiment
from fedstrata.process.address import split_address
from fedstrata.process.quoting import quoted
from fedstrata.trust.call_table import Claim
from fedstrata.trust.names import Peer
from fedstrata.trust.security import Security
from fedstrata.v1 import gps_service_pb2 as pb
from gps.devices.roster import Device
from gps.hosting.presence import LpsPresence
from gps.journal.journal import Journal
from gps.plans.places import Places, home_name

LONGEST_NUMBER = 9  # digits of an LPS's number


@dataclass(frozen=True, kw_only=True)
class Handover:
    """Describe a change of the LPS that serves a cluster."""

    home_id: str
    lps_id: str
    global_round: int  # the global round that is open at the change

    @property
    def is_return(self) -> bool:
        """Return whether the cluster returns to its own LPS."""
        return self.home_id == self.lps_id


class Serving:
    """Hold the addresses of LPSs, and which LPS serves each cluster. Each change is written to the journal."""

    def __init__(
        self, experiment: Experiment, places: Places, journal: Journal, security: Security,
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        self._experiment = experiment
        self._places = places
        self._journal = journal
        self._addresses = journal.hosting.addresses()
        self.presence = LpsPresence(experiment, self._addresses, security, clock)
        self.handovers = [
            Handover(home_id=home_id, lps_id=lps_id, global_round=global_round)
            for home_id, lps_id, global_round in journal.hosting.handovers()
        ]
        for _, lps_id, _ in journal.hosting.refusals():  # before a restart
            self.presence.refuse(lps_id)

    # --- who serves what ------------------------------------------------------------------------

    def register(self, request: pb.RegisterLpsRequest) -> None:
        """Keep an LPS's address.

        Raises:
            WrongRunError: the LPS runs another experiment.
            UnknownChildError, AddressError: the id or the address of the LPS is invalid.
        """
        if request.experiment_sha256 != self._experiment.digest:
            raise WrongRunError(f"{quoted(request.lps_id)} has another experiment than the GPS; give both one file")
        number = request.lps_id.removeprefix("lps-")
        if not number.isdecimal() or len(number) > LONGEST_NUMBER or home_name(int(number)) != request.lps_id:
            raise UnknownChildError(f"{quoted(request.lps_id)} is not the id of an LPS; give lps-0, lps-1, …")
        split_address(request.address)
        self._addresses[request.lps_id] = request.address
        self._journal.hosting.register(request.lps_id, request.address)
        self._journal.made_with.note("lps", request.lps_id, request.software)
        self.presence.register(request.lps_id)

    def is_known(self, lps_id: str) -> bool:
        """Return whether an LPS has registered or serves devices."""
        return lps_id in self._addresses or lps_id in self._places.homes

    def lps_of(self, home_id: str) -> str:
        """Return the LPS that serves a cluster now."""
        return next((h.lps_id for h in reversed(self.handovers) if h.home_id == home_id), home_id)

    def term_of(self, home_id: str) -> int:
        """Return how often the LPS of a cluster has changed. This number is called the term."""
        return sum(handover.home_id == home_id for handover in self.handovers)

    def is_current(self, home_id: str, term: int) -> bool:
        """Return whether `term` is the present term of the cluster (see `term_of`)."""
        return term == self.term_of(home_id)

    async def belongs(self, peer: Peer, claim: Claim) -> bool:
        """Return whether the caller is the LPS that served the cluster in the term that the message states (see
        `term_of`). If the message states no term, the caller may be any LPS that serves or has served the cluster.
        """
        handovers = [handover.lps_id for handover in self.handovers if handover.home_id == claim.home_id]
        served = [claim.home_id or "", *handovers]  # the LPS that served in term i is at index i
        if claim.term is not None:
            served = served[claim.term : claim.term + 1] if claim.term >= 0 else []
        return any(peer.is_("lps", lps_id) and claim.id in (None, lps_id) for lps_id in served)

    def clusters_of(self, lps_id: str) -> list[str]:
        """Return the clusters that an LPS serves. For a refused LPS, return an empty list."""
        return [] if self.presence.is_refused(lps_id) else [n for n in self._places.homes if self.lps_of(n) == lps_id]

    def refuse(self, home_id: str, reason: str) -> None:
        """Refuse the LPS that serves a cluster now. The refusal holds until the end of the run."""
        lps_id = self.lps_of(home_id)
        self._journal.hosting.refuse(home_id, lps_id, reason)
        self.presence.refuse(lps_id)

    def refusals(self) -> dict[str, str]:
        """Return, by cluster, the reason for which the LPS that serves the cluster was refused."""
        return {home: why for home, lps_id, why in self._journal.hosting.refusals() if self.lps_of(home) == lps_id}

    def awaited(self) -> set[str]:
        """Return the clusters from which the GPS can still receive messages. A cluster of a refused LPS is included
        only if another LPS can adopt the cluster.
        """
        adoptable = self.adoptable()
        return {n for n in self._places.homes if n in adoptable or not self.presence.is_refused(self.lps_of(n))}

    def assignment(self, device: Device) -> pb.FetchAssignmentResponse:
        """Return a reply with the LPS and the cluster of a device. If they are not known yet, or the LPS may not serve
        devices, the reply says that the device is not assigned.
        """
        reply = pb.FetchAssignmentResponse(run_id=self._journal.attempt_id)
        if device.home is None:
            return reply
        home_id = home_name(device.home)
        lps_id = self.lps_of(home_id)
        if self._is_named(lps_id):
            reply.is_assigned = True
            reply.home_id, reply.lps_id, reply.lps_address = home_id, lps_id, self._addresses[lps_id]
        return reply

    def pods(self) -> dict[str, list[str]]:
        """Return, by pod name, the LPSs that serve the pod's devices."""
        return {
            pod: sorted({self.lps_of(name) for name in clusters}, key=_number)
            for pod, clusters in self._places.pods().items()
        }

    @property
    def are_all_there(self) -> bool:
        """Return whether the LPS of every cluster has registered, and may serve devices."""
        return all(self._is_named(self.lps_of(name)) for name in self._places.homes)

    def _is_named(self, lps_id: str) -> bool:
        """Return whether devices may learn an LPS's address. The LPS must have registered, and must be allowed to serve
        devices.
        """
        return lps_id in self._addresses and self.presence.may_serve(lps_id)

    # --- who is away ----------------------------------------------------------------------------

    def check_again_s(self) -> float | None:
        """Return after how many seconds the GPS must check again whether an LPS that serves clusters is absent. If no
        LPS can become absent, return None.
        """
        return self.presence.check_again_s(map(self.lps_of, self._places.homes))

    def adoptable(self, done: Container[str] = ()) -> dict[str, str]:
        """Return, for each cluster with an absent LPS, the LPS that should adopt the cluster.

        Clusters in `done` need no LPS. If the cluster's own LPS is back, choose this LPS. Otherwise choose the LPS with
        the fewest clusters. If several LPSs have equally few clusters, choose the LPS with the lowest number.
        """
        away = [
            name for name in self._places.homes if name not in done and self.presence.left_s(self.lps_of(name)) <= 0
        ]
        if not away:
            return {}
        load = {name: len(self.clusters_of(name)) for name in sorted(self._addresses, key=_number)}
        there = {name: load[name] for name in load if self.presence.is_there(name)}
        chosen = {}
        for home_id in away if there else ():
            chosen[home_id] = home_id if home_id in there else min(there, key=lambda name: there[name])
            there[chosen[home_id]] += 1
        return chosen

    def returnable(self) -> dict[str, str]:
        """Return the adopted clusters that can return to their own LPS, because this LPS is back. The result maps the
        name of each such cluster to the name of its own LPS.
        """
        return {name: name for name in self._places.homes if self.lps_of(name) != name and self.presence.is_there(name)}

    def hand_over(self, home_id: str, lps_id: str, global_round: int) -> Handover:
        """Let another LPS serve a cluster, and return the change."""
        self._journal.hosting.hand_over(home_id, lps_id, global_round)
        handover = Handover(home_id=home_id, lps_id=lps_id, global_round=global_round)
        self.handovers.append(handover)
        return handover

    def stage_of(self, global_round: int) -> str:
        """Return the stage of the run in which a global round is open, as a text: `evaluation` or, for example, `global
        round 3`.
        """
        is_trained = global_round == self._experiment.training.global_rounds
        return "evaluation" if is_trained else f"global round {global_round + 1}"


def _number(lps_id: str) -> int:
    return int(lps_id.removeprefix("lps-"))
