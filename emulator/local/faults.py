"""Cause an experiment's faults on this machine. Processes get signals, links get proxies, and processes kill themselves
at given points of their code.
"""

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import get_args

from emulator.local.proxy import LinkProxy
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.faults import CutFault, Fault, KillFault, Moment, PauseFault, Phase
from fedstrata.experiment.links import Link
from fedstrata.process.child_processes import OwnedProcess
from fedstrata.process.fault_points import VARIABLE
from fedstrata.v1 import gps_service_pb2 as pb

PHASES = get_args(Phase)


class FaultDriver:
    """Cause each fault once, when the run reaches the time of the fault."""

    def __init__(self, faults: Sequence[Fault], markers: Path, tell: Callable[[str], None]) -> None:
        """Set `markers`, a folder. A process that kills itself at a point of its code first writes a file there, so
        that it does this only once.
        """
        self._markers = markers
        self._tell = tell
        self._processes: dict[str, OwnedProcess] = {}
        self._proxies: dict[Link, list[LinkProxy]] = {}
        self._pauses: Counter[int] = Counter()  # pauses that have not ended, by process id
        self._cuts: Counter[Link] = Counter()  # cuts that have not ended
        self.take(faults)

    def take(self, faults: Sequence[Fault]) -> None:
        """Use these faults instead of the earlier faults."""
        self._faults = list(faults)
        # Faults that have not happened yet, by number. A continued run has the markers of those that have.
        self._open = {n: fault for n, fault in enumerate(self._faults) if not self._has_marker(n, fault)}

    # --- what is started ----------------------------------------------------------------------

    def environment(self, names: Sequence[str]) -> dict[str, str]:
        """Return the environment variables for a process with these names. The variables say at which points of its
        code the process must kill itself.
        """
        orders = []
        for number, fault in enumerate(self._faults):
            if isinstance(fault, KillFault) and fault.at.point is not None and fault.process in names:
                self._markers.mkdir(parents=True, exist_ok=True)
                at, marker = fault.at, str(self._marker(number))
                orders.append({"point": at.point, "round": at.round, "count": at.count, "marker": marker})
        return {VARIABLE: json.dumps(orders)} if orders else {}

    def _marker(self, number: int) -> Path:
        """Return the file that a process writes just before it kills itself because of this fault."""
        return (self._markers / f"{number}").absolute()

    def _has_marker(self, number: int, fault: Fault) -> bool:
        return fault.at.point is not None and self._marker(number).exists()

    def add(self, process: OwnedProcess, names: Sequence[str]) -> None:
        """Store a started process under the names that faults use for it."""
        self._processes.update(dict.fromkeys(names, process))

    def has_link(self, link: Link) -> bool:
        """Return whether a fault cuts this link."""
        return any(isinstance(fault, CutFault) and fault.link == link for fault in self._faults)

    async def by_way_of(self, link: Link, address: str) -> str:
        """Return the address for connections over a link. If some fault of the experiment cuts the link, this is the
        address of a new proxy. Otherwise it is `address`.
        """
        if not self.has_link(link):
            return address
        return (await self.proxy(link, address)).address

    async def proxy(self, link: Link, address: str | None = None) -> LinkProxy:
        """Start a proxy on a link, and return the proxy. The proxy forwards to `address`. Without an address, its
        `lead_to` sets one later.
        """
        proxy = LinkProxy()
        await proxy.start(address)
        if self._cuts[link]:
            proxy.cut()
        self._proxies.setdefault(link, []).append(proxy)
        return proxy

    # --- what happens -------------------------------------------------------------------------

    def observe(self, status: pb.RunStatus) -> None:
        """Cause the faults that are due in this state of the run. Report these faults, and the faults that processes
        have caused themselves.
        """
        for number, fault in list(self._open.items()):
            if self._has_marker(number, fault) or (is_due(fault.at, status) and self._bring_about(fault)):
                del self._open[number]
                self._tell(describe(fault))

    def _bring_about(self, fault: Fault) -> bool:
        """Cause a fault, and return True. If the process or the link of the fault does not exist now, return False. A
        process is paused only after its start, when it can notice that its parent ends.
        """
        match fault:
            case KillFault() | PauseFault():
                process = self._processes.get(fault.process)
                if process is None or process.pid is None:
                    return False
                if isinstance(fault, KillFault):
                    return process.kill()
                return process.has_started and self._pause(process.pid, fault.for_s)
            case CutFault():
                proxies = self._proxies.get(fault.link, ())
                for proxy in proxies:
                    proxy.cut()
                if proxies:
                    self._cuts[fault.link] += 1
                    asyncio.get_running_loop().call_later(fault.for_s, self._mend, fault.link)
                return bool(proxies)

    def _pause(self, pid: int, for_s: float) -> bool:
        try:
            os.kill(pid, signal.SIGSTOP)
        except ProcessLookupError:  # the process has just died, and is started again
            return False
        self._pauses[pid] += 1
        asyncio.get_running_loop().call_later(for_s, self._go_on, pid)
        return True

    def _go_on(self, pid: int) -> None:
        self._pauses[pid] -= 1
        if not self._pauses[pid]:
            with suppress(ProcessLookupError):  # the process may have been killed meanwhile
                os.kill(pid, signal.SIGCONT)

    def _mend(self, link: Link) -> None:
        self._cuts[link] -= 1
        if not self._cuts[link]:
            for proxy in self._proxies[link]:
                proxy.mend()

    def close(self) -> None:
        """Let paused processes continue, so that they can be stopped. Close the proxies. Report the faults that were
        never caused.
        """
        for pid in +self._pauses:
            self._pauses[pid] = 1
            self._go_on(pid)
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.close()
        self.observe(pb.RunStatus())  # processes may have killed themselves since the last status
        for fault in self._open.values():
            self._tell(f"did not happen: {describe(fault)}")


def is_due(at: Moment, status: pb.RunStatus) -> bool:
    """Return whether a run has reached the phase or global round of a fault."""
    if status.phase not in PHASES:
        return False
    if at.phase is not None:
        return PHASES.index(status.phase) >= PHASES.index(at.phase)
    return at.global_round is not None and status.phase == "training" and status.global_round + 1 >= at.global_round


def describe(fault: Fault) -> str:
    """Return a short description of a fault."""
    what = fault.process if isinstance(fault, KillFault | PauseFault) else fault.link
    at = fault.at
    moment = f"in {at.phase}" if at.phase else f"in global round {at.global_round}"
    if at.point is not None:
        moment = f"at {at.point}" + ("" if at.round is None else f" in round {at.round}")
    how_long = "" if isinstance(fault, KillFault) else f" for {fault.for_s:g} s"
    return f"{fault.do} {what}{how_long} {moment}"


def refuse_faults(experiment: Experiment, where: str) -> None:
    """Raise ExperimentError if the experiment has faults. The message says that `where`, such as a kind of run, cannot
    cause faults.
    """
    if experiment.faults:
        raise ExperimentError(
            f"faults: the experiment has {len(experiment.faults)}, but {where} cannot cause faults; run on this "
            "machine, or give --set faults=[]"
        )
