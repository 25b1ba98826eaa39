"""How an LPS ends: its devices hear that the run is over."""

from fedstrata.experiment import Experiment
from fedstrata.process.logs import EventLog
from fedstrata.rounds import RoundResult, RoundServer

TELL_S = 10.0  # how long devices that have been measured may take to hear that the run is over


async def say_good_bye(server: RoundServer, gathered: RoundResult, experiment: Experiment, log: EventLog) -> None:
    """Let the devices that have measured the final model hear, for a time, that the run is over."""
    measured = {evaluation.device_id for evaluation in gathered.evaluations}
    deadline_s = experiment.deadlines.gps.deadline_s
    tell_s = TELL_S if deadline_s is None else min(TELL_S, deadline_s / 3)  # the report has a deadline, too
    if not await server.wait_all_told(measured, tell_s):
        log.warning("devices_not_told", reason=f"not all asked again within {tell_s:g} s")
