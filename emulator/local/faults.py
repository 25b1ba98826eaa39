"""Cause an experiment's faults on this machine. Processes get signals, links get proxies, and processes kill themselves
at given points of their code.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from emulator.local.proxy import LinkProxy
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.experiment.faults import CutFault, Fault, KillFault, Moment, PauseFault
from fedstrata.experiment.links import Link
from fedstrata.process.fault_points import VARIABLE
from fedstrata.process.owned import OwnedProcess
from fedstrata.v1 import gps_service_pb2 as pb

PHASES = ("enrolment", "relevance", "grouping", "training", "evaluation", "completed")


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
        self._paused: set[int] = set()
        self.take(faults)

    def take(self, faults: Sequence[Fault]) -> None:
        """Use these faults instead of the earlier faults."""
        self._faults = list(faults)
        self._open = [fault for fault in faults if fault.at.point is None]

    # --- what is started ----------------------------------------------------------------------

    def environment(self, names: Sequence[str]) -> dict[str, str]:
        """Return the environment variables for a process with these names. The variables say at which points of its
        code the process must kill itself.
        """
        orders = []
        for number, fault in enumerate(self._faults):
            if isinstance(fault, KillFault) and fault.at.point is not None and fault.process in names:
                self._markers.mkdir(parents=True, exist_ok=True)
                marker = str((self._markers / f"{number}").absolute())
                at = fault.at
                orders.append({"point": at.point, "round": at.round, "count": at.count, "marker": marker})
        return {VARIABLE: json.dumps(orders)} if orders else {}

    def add(self, process: OwnedProcess, names: Sequence[str]) -> None:
        """Store a started process under the names that faults use for it."""
        self._processes.update(dict.fromkeys(names, process))

    def has_link(self, link: Link) -> bool:
        """Return whether a fault cuts this link."""
        return any(isinstance(fault, CutFault) and fault.link == link for fault in self._faults)

    async def by_way_of(self, link: Link, address: str) -> str:
        """Return the address for connections over a link. If a fault cuts the link, this is the address of a new proxy.
        Otherwise it is the given address.
        """
        if not self.has_link(link):
            return address
        return (await self.proxy(link, address)).address

    async def proxy(self, link: Link, address: str | None = None) -> LinkProxy:
        """Start a proxy on a link, and return the proxy. `address` is the address to which the proxy forwards. If it is
        not known yet, it is None.
        """
        proxy = LinkProxy()
        await proxy.start(address)
        self._proxies.setdefault(link, []).append(proxy)
        return proxy

    # --- what happens -------------------------------------------------------------------------

    def observe(self, status: pb.RunStatus) -> None:
        """Cause the faults that are due in this state of the run."""
        for fault in list(self._open):
            if is_due(fault.at, status) and self._bring_about(fault):
                self._open.remove(fault)
                self._tell(describe(fault))

    def _bring_about(self, fault: Fault) -> bool:
        """Cause a fault, and return True. If the process or the link of the fault does not exist yet, return False."""
        match fault:
            case KillFault() | PauseFault():
                process = self._processes.get(fault.process)
                if process is None or process.pid is None:
                    return False
                if isinstance(fault, PauseFault):
                    self._pause(process.pid, fault.for_s)
                else:
                    process.kill()
            case CutFault():
                proxies = self._proxies.get(fault.link)
                if not proxies:
                    return False
                for proxy in proxies:
                    proxy.cut()
                    asyncio.get_running_loop().call_later(fault.for_s, proxy.mend)
        return True

    def _pause(self, pid: int, for_s: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        self._paused.add(pid)
        asyncio.get_running_loop().call_later(for_s, self._go_on, pid)

    def _go_on(self, pid: int) -> None:
        if pid in self._paused:
            self._paused.discard(pid)
            with suppress(ProcessLookupError):  # the process may have been killed meanwhile
                os.kill(pid, signal.SIGCONT)

    def close(self) -> None:
        """Let paused processes continue, so that they can be stopped. Close the proxies. Report the faults that were
        never caused.
        """
        for pid in list(self._paused):
            self._go_on(pid)
        for proxies in self._proxies.values():
            for proxy in proxies:
                proxy.close()
        for fault in self._open:
            self._tell(f"did not happen: {describe(fault)}")


def is_due(at: Moment, status: pb.RunStatus) -> bool:
    """Return whether a run has reached the phase or global round of a fault."""
    if status.phase not in PHASES[:-1]:
        return False
    if at.phase is not None:
        return PHASES.index(status.phase) >= PHASES.index(at.phase)
    return status.phase == "training" and status.global_round + 1 >= (at.global_round or 1)


def describe(fault: Fault) -> str:
    """Return a short description of a fault."""
    what = fault.process if isinstance(fault, KillFault | PauseFault) else fault.link
    moment = f"in {fault.at.phase}" if fault.at.phase else f"in global round {fault.at.global_round}"
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
