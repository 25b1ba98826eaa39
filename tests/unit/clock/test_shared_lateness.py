"""LPS rounds with a deadline whose devices share a link up, as an LPS goes through them in virtual time."""

import asyncio
from collections.abc import Mapping

import pytest

from fedstrata.clock.exchanged import Exchanged
from fedstrata.errors import PayloadError
from fedstrata.methods import Moment, Question
from fedstrata.v1 import rounds_pb2 as pb
from fedstrata.v1.answers_pb2 import Answer
from tests.support.lps_rounds import LpsRounds, header_of
from tests.support.shared_deadline import NAMES, S, shared_experiment

SAME, SLOW = (0, 0, 0), (0, 0, 50)  # examples: half a second for the third
Sizes = tuple[int, int, int]


QUESTION = Question(name="losses", moment=Moment.RECEIVED, arrays={})


class SharedRounds(LpsRounds):
    """LPS rounds of three devices, which announce updates of so many bytes, trained on so many examples."""

    def __init__(self, *overrides: str, busy_ns: Mapping[int, int] | None = None) -> None:
        super().__init__(shared_experiment(*overrides), busy_ns)

    def header(self, name: str, size: int, examples: int, answer: Answer | None = None) -> pb.UpdateHeader:
        answer = answer or Answer()
        for_it = answer.trained_examples
        work = pb.Work(examples=examples, answer_bytes=answer.ByteSize(), answer_examples=for_it)
        return header_of(name, size, work, number=self.opened.number)

    async def announce(self, header: pb.UpdateHeader) -> None:
        for stage in self.stages:
            await stage.hear(header)

    def end(self, sizes: Sizes, examples: Sizes = SAME, answers: Mapping[str, Answer] | None = None) -> list[str]:
        """Have those that are waited for announce, backwards, and close the round; gives who was late."""
        opened, awaited = self.opened, self.opened.intake.missing
        for name, size, trained in reversed(list(zip(NAMES, sizes, examples, strict=True))):
            if name in awaited:
                header = self.header(name, size, trained, (answers or {}).get(name))
                asyncio.run(self.announce(header))
                self.taken[name] = Exchanged.of_update(header).after(opened.sent_to(name))
        for stage in self.stages:
            asyncio.run(stage.gather())
        late = sorted(set(awaited) - set(opened.intake.missing))
        self.taken = {name: self.taken[name] for name in awaited if name not in late}
        self.close()
        return late

    def round(self, number: int, sizes: Sizes, examples: Sizes = SAME, *, down: int = 0) -> list[str]:
        self.open(number, down=down)
        return self.end(sizes, examples)


def test_a_late_device_is_broken_off_and_the_next_round_has_the_link_and_all_devices() -> None:
    rounds = SharedRounds()
    # two send 8,000 bits, with the third in between over at 0.75 s; of its 16,000 bits 8,000 have left after a second
    assert rounds.round(0, (1_000, 1_000, 2_000), SLOW) == ["device-002"]
    first = rounds.report.lps_rounds[-1].times
    assert [flow.up_ns for flow in first.flows] == [S * 3 // 4, S * 3 // 4]
    assert (first.ends_ns, first.slowest, first.waiting_ns) == (S, "device-000", S // 2)
    assert [(flow.child, flow.up_bytes, flow.unsent_bytes, flow.up_ns) for flow in first.late] == [
        (2, 2_000, 1_000, S // 2)
    ]
    # 24,000 bits of all three in a second, as if nothing had been
    assert rounds.round(1, (1_000, 1_000, 1_000)) == []
    second = rounds.report.lps_rounds[-1].times
    assert (second.begins_ns, second.ends_ns, dict(rounds.report.busy_ns)) == (S, 2 * S, {})
    assert [flow.away_ns for flow in second.flows] == [0, 0, 0]


def test_who_computes_as_the_deadline_passes_joins_the_next_round_when_it_has() -> None:
    rounds = SharedRounds()
    assert rounds.round(0, (1_000, 1_000, 1_000), (0, 0, 120)) == ["device-002"]
    assert dict(rounds.report.busy_ns) == {2: S + S // 5}
    # it listens from 1.2 s on; two begin at 1 s with 12 kbit/s each, 2,400 bits, then three share
    assert rounds.round(1, (500, 500, 500)) == []
    times = rounds.report.lps_rounds[-1].times
    assert [flow.away_ns for flow in times.flows] == [0, 0, S // 5]
    # 1,600 bits at 8 kbit/s: until 1.4 s; the third has sent 1,600 of 4,000 bits then, the rest takes 0.1 s
    assert [flow.up_ns for flow in times.flows] == [S * 2 // 5, S * 2 // 5, S * 3 // 10]
    assert times.ends_ns == S + S // 2


def test_who_computes_longer_than_the_next_round_may_last_is_left_out_of_it() -> None:
    rounds = SharedRounds()
    assert rounds.round(0, (1_000, 1_000, 1_000), (0, 0, 250)) == ["device-002"]
    assert dict(rounds.report.busy_ns) == {2: 5 * S // 2}
    assert rounds.round(1, (1_000, 1_000, 1_000)) == []
    assert [flow.child for flow in rounds.report.lps_rounds[-1].times.flows] == [0, 1]
    assert rounds.report.now_ns == 2 * S  # somebody is missing: it lasts until the deadline
    assert rounds.round(2, (250, 250, 250)) == []
    assert [flow.child for flow in rounds.report.lps_rounds[-1].times.flows] == [0, 1, 2]


def test_what_is_known_of_late_devices_survives_the_lps() -> None:
    one, other = SharedRounds(), SharedRounds()
    one.round(0, (1_000, 1_000, 1_000), (0, 0, 120))
    other.report.CopyFrom(one.report)
    assert one.round(1, (900, 1_000, 1_200)) == other.round(1, (900, 1_000, 1_200))
    assert one.report == other.report


def test_work_that_is_never_done_is_refused_as_it_is_announced() -> None:
    rounds = SharedRounds("compute.per_example=1h")
    rounds.open(0)
    with pytest.raises(PayloadError, match="training on 700000 examples takes more than 73 years"):
        asyncio.run(rounds.announce(rounds.header(NAMES[0], 1_000, 700_000)))
    # a link that is too slow for it is none of its sender's faults: what is on its way is broken off
    assert rounds.end((10**15, 1_000, 1_000)) == ["device-000"]


# --- broadcasts -------------------------------------------------------------------------------------------------


def test_a_broadcast_is_over_when_it_is_known_to_be_and_who_is_free_later_has_it_by_its_own_link() -> None:
    shared = "links={device-lps: {down_rate: 16kbit/s}, shared: {device-lps: {down_rate: 16kbit/s, broadcast: true}}}"
    rounds = SharedRounds(shared, "deadlines.lps.deadline_s=2", busy_ns={2: S * 6 // 5})
    # nothing holds updates up, so that they are there with the model, and nobody has to announce any
    rounds.open(0, down=2_000)
    assert not rounds.deadline.are_announced
    late = [name for name in NAMES if not rounds.is_in_time(rounds.header(name, 500, 0))]
    # the broadcast lasts a second; the third begins to listen after 1.2 s and has it by its own link a second later
    assert late == ["device-002"]
    rounds = SharedRounds(shared.replace("{down_rate: 16kbit/s},", "{down_rate: 32kbit/s},"), busy_ns={2: S // 2})
    rounds.open(0, down=2_000)
    assert [rounds.is_in_time(rounds.header(name, 500, 0)) for name in NAMES] == [True] * 3


def test_a_model_of_their_own_is_broadcast_from_when_the_first_of_its_devices_listens() -> None:
    from fedstrata.clock.timeline import DeviceTimeline

    shared = "links={shared: {device-lps: {down_rate: 16kbit/s, broadcast: true}}}"
    devices = DeviceTimeline(shared_experiment(shared))
    offered = {
        name: Exchanged(down_bytes=2_000, up_bytes=0, work=pb.Work(), stream=stream)
        for name, stream in zip(NAMES, (0, 1, 1), strict=True)
    }
    there = devices.round(0, 0, {NAMES[1]: 5 * S, NAMES[2]: 4 * S}).send_models(offered)
    assert there == {NAMES[0]: S, NAMES[1]: 5 * S, NAMES[2]: 5 * S}


def test_models_of_their_own_are_broadcasts_of_their_own_where_there_is_a_deadline_too() -> None:
    rounds = SharedRounds("links={shared: {device-lps: {down_rate: 16kbit/s, broadcast: true}}}")
    # alone a model of 1,000 bytes is there after half a second, as one of three broadcasts after one and a half
    for clusters, are_in_time in (((0, 0, 0), True), ((0, 1, 2), False)):
        rounds.open(0, down=1_000, clusters=clusters)
        assert [rounds.is_in_time(rounds.header(name, 0, 0)) for name in NAMES] == [are_in_time] * 3


# --- questions --------------------------------------------------------------------------------------------------

# With their tags each is 1,000 or 2,000 bytes: 8,000 or 16,000 bits.
ANSWERS = {name: Answer(data=bytes(size)) for name, size in zip(NAMES, (997, 997, 1_997), strict=True)}
ASKING = ("method={name: ifca, clusters: 2}", "training.lps_rounds_per_global_round=1")


def asked(rounds: SharedRounds) -> list[str]:
    """Have all answer in a round that is open, backwards; whose answers are late."""
    opened = rounds.opened
    for name in reversed(NAMES):
        rounds.asking.keep(name, ANSWERS[name])
        assert opened.intake.state_of(name) is not None
    assert opened.intake.missing == NAMES  # nobody is late before all have answered
    late = sorted(rounds.deadline.late_answers(rounds.asking.exchanged(rounds.asking.answers)))
    for name in late:
        opened.intake.exclude(name)
    return late


def test_late_answers_and_late_updates_each_share_the_link_until_their_deadline() -> None:
    assert [answer.ByteSize() for answer in ANSWERS.values()] == [1_000, 1_000, 2_000]
    rounds = SharedRounds(*ASKING, "deadlines.lps.deadline_s=1.2")
    rounds.open(0, question=QUESTION)
    # 24,000 bits in a second, then the third alone: 4,800 of its last 8,000 bits until 1.2 s
    assert asked(rounds) == ["device-002"]
    (late,) = rounds.deadline.late_flows
    assert (late.answer_bytes, late.unsent_bytes, late.up_ns) == (2_000, 400, S * 6 // 5)
    answers = {name: ANSWERS[name] for name in NAMES[:2]}
    went = {name: Exchanged.of_answer(answer) for name, answer in answers.items()}
    assert rounds.clock.answered_ns(lambda: went) == S * 6 // 5
    rounds.clock.go_on(0, 2 * S)
    # the first is over at 3 s, when both have sent 12,000 bits; the second alone until 3.2 s: 16,800 of 24,000 bits
    assert rounds.end((1_500, 3_000, 1), answers=ANSWERS) == ["device-001"]
    times = rounds.report.lps_rounds[-1].times
    assert times.ends_ns == 2 * S + S * 6 // 5
    # the answers of those in time took a second, since the third's was under way, too
    assert [(flow.child, flow.up_ns) for flow in times.flows] == [(0, 2 * S)]
    assert [(flow.child, flow.unsent_bytes) for flow in times.late] == [(1, 900), (2, 400)]
    assert times.late[0].up_ns == S + S * 6 // 5  # and so did that of who was late with its update


def test_an_lps_that_is_back_after_the_plan_works_the_same_out() -> None:
    live, back = (SharedRounds(*ASKING, "deadlines.lps.deadline_s=1.2") for _ in range(2))
    live.open(0, question=QUESTION)
    asked(live)
    back.open(0, question=QUESTION)
    back.asking.restore(live.deadline.late_flows)
    assert back.opened.intake.missing == NAMES[:2]
    for rounds in (live, back):
        rounds.clock.go_on(0, 2 * S)
        rounds.end((1_500, 3_000, 1), answers=ANSWERS)
    assert live.report == back.report
    assert live.report.busy_ns == {1: 3 * S + S // 5, 2: S + S // 5}
