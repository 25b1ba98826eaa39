"""Checks of the times, the transfers and the work that children report. They refuse impossible numbers."""

from fedstrata.clock.timeline import LAST_NS
from fedstrata.errors import PayloadError
from fedstrata.rpc.messages import MOST_COUNTED, MOST_MEASURED
from fedstrata.rpc.server import MAX_MESSAGE_BYTES
from fedstrata.v1 import rounds_pb2 as pb

TIMES = ("begins_ns", "ends_ns", "ready_ns")
SUMMED = ("down_ns", "compute_ns", "up_ns", "waiting_ns")  # fields that are sums over the children of a round
DURATIONS = ("link", "achieved_link", "latency", "achieved_latency")


def check_work(work: pb.Work, child_id: str) -> None:
    """Raise PayloadError if a child cannot have done this work for an update."""
    longest_ns = max(work.busy_ns, work.computed_ns)
    can_be = min(work.busy_ns, work.computed_ns) >= 0 and longest_ns < LAST_NS and work.computed_ns < MOST_COUNTED
    if not (0 <= work.answer_examples <= work.examples < MOST_MEASURED and can_be):
        raise PayloadError(f"{child_id} reports impossible work: {work.examples} examples, {longest_ns} ns")
    if not 0 <= work.answer_bytes <= MAX_MESSAGE_BYTES:  # an answer in a round is one message
        raise PayloadError(f"{child_id} reports an answer of {work.answer_bytes} bytes; at most {MAX_MESSAGE_BYTES}")


def check_times(times: pb.RoundTimes, of: str) -> None:
    """Raise PayloadError if a round cannot have had these times and transfers. The error message begins with `of`, the
    name of the round.
    """
    if not all(0 <= getattr(times, name) < LAST_NS for name in TIMES):
        raise PayloadError(f"{of} is reported with an impossible time; its end is {times.ends_ns} ns")
    if any(getattr(times, name) < 0 for name in SUMMED):
        raise PayloadError(f"{of} is reported with a negative duration")
    flows = [*times.flows, *times.late]
    sizes = [times.next_bytes, *(size for flow in flows for size in _sizes(flow))]
    are_sent = all(flow.unsent_bytes <= flow.up_bytes + flow.answer_bytes for flow in flows)
    if not (are_sent and all(0 <= size < MOST_COUNTED for size in sizes)):
        raise PayloadError(f"{of} is reported with flows of impossible sizes")
    are_parts = all(0 <= took < LAST_NS for flow in flows for took in (flow.down_ns, flow.compute_ns, flow.up_ns))
    if not (are_parts and all(0 <= flow.away_ns <= flow.down_ns for flow in flows)):
        raise PayloadError(f"{of} is reported with flows of impossible durations")
    if not all(_is_possible(each) for each in times.contributions):
        raise PayloadError(f"{of} is reported with impossible updates")
    if not all(_can_be(each) for each in times.carried):
        raise PayloadError(f"{of} is reported with impossible transfers")


def children_of(times: pb.RoundTimes) -> list[int]:
    """Return the child to which each transfer, each computation and each asynchronous update in a round's times
    belongs. A child is given by the index of a device or the number of a cluster. The same child may be returned
    several times.
    """
    lists = ([each.child for each in found] for found in (times.flows, times.late, times.carried, times.contributions))
    return [child for found in lists for child in found]


def _is_possible(each: pb.Contribution) -> bool:
    """Return whether an asynchronous round can have taken this update."""
    if each.HasField("flow") or each.HasField("progress"):  # these are only in the LPS's own file
        return False
    numbers = (each.from_round, each.stream, each.factor, each.asked_ns)
    return all(0 <= number < LAST_NS for number in numbers) and each.asked_ns <= each.arrives_ns < LAST_NS


def _can_be(carried: pb.Carried) -> bool:
    """Return whether these values are possible for a transfer or a computation that an LPS has measured."""
    durations = (getattr(carried, f"{name}_ns") for name in DURATIONS)
    is_known = carried.link == "device-lps" and carried.direction in {"down", "up", "compute"}
    are_sizes = 0 <= carried.bytes < MOST_COUNTED and 0 <= carried.examples < MOST_MEASURED
    return is_known and are_sizes and all(0 <= each < MOST_COUNTED for each in durations)


def _sizes(flow: pb.Flow) -> tuple[int, ...]:
    sent = (flow.down_bytes, flow.up_bytes, flow.answer_bytes)
    return flow.child, *sent, flow.unsent_bytes, flow.examples, flow.answer_examples, flow.stream
