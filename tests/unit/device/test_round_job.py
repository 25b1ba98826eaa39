"""One LPS round at a device: what it answers, trains and sends, and what it keeps for the next round."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest

from device.__main__ import load
from device.personal import KeptInMemory, PersonalStore
from device.round_job import OWN_LAYERS
from device.work import Beginning, DeviceProcess, DeviceWork, put_together
from fedstrata.errors import PayloadError, PluginError
from fedstrata.experiment_file import parse_experiment
from fedstrata.methods import Arrays, Facts, Method, Moment, Outcome, Plan, Question, Reach, Work, all_layers
from fedstrata.partitions import device_data
from fedstrata.plugins import guarded
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.rounds import Update
from fedstrata.rpc.answer_messages import arrays_of
from fedstrata.streams.architectures import Architectures
from fedstrata.tensors import Flat, taken
from fedstrata.trust.security import OPEN
from fedstrata.v1.answers_pb2 import Answer
from tests.support.methods import method_with
from tests.support.round_jobs import Diary, job_of, store_in

TEXT = """
name: one-round
partition: {kind: iid, devices: 3, examples_per_device: 40}
model: {name: mlp, hidden: [4]}
method: METHOD
training: {global_rounds: 4, lps_rounds_per_global_round: 2, local_steps: 2, batch_size: 16}
"""


def host_of(method: str, *, own: type[Method] | None = None, **fields: Any) -> DeviceProcess:
    """What a device process has; with a method of the test's own, if it gives one."""
    experiment = parse_experiment(TEXT.replace("METHOD", method), overrides=[f"{k}={v}" for k, v in fields.items()])
    host = load(experiment, cast(Any, SimpleNamespace(security=OPEN)), ProcessMetrics("device"), None)
    if own is None:
        return host
    made = method_with(guarded("method own:Method", own, Method), {"name": "own:Method"}, Facts(device_count=3))
    changed = {"method": made, "architectures": Architectures(experiment, made)}
    return DeviceProcess(**{**vars(host), **changed})


def work_of(host: DeviceProcess, *, made: dict[str, Any] | None = None, **begins: Any) -> DeviceWork:
    """What device 1 does in a round that begins so, or before training."""
    data, beginning = device_data(host.experiment, host.dataset, 1), Beginning(**begins)
    return DeviceWork(host, data, 1, made=made, begins=beginning)


def values_of(sent: Any) -> Flat:
    assert isinstance(sent, Update)
    return sent.read(0, sent.codec.layout.size)


def answered(host: DeviceProcess, sent: Any) -> Arrays:
    assert isinstance(sent, Answer)
    (question,) = host.method.questions()
    return arrays_of(question, sent)


# --- a round in which nobody is asked -------------------------------------------------------------


async def test_an_update_is_what_was_trained_minus_what_was_received() -> None:
    host = host_of("fedavg")
    start = host.model.initial(7)
    sent = await job_of(host, start, lps_round=3).begin()
    trained = await work_of(host, received=[start], lps_round=3, global_round=1).train(start)
    assert values_of(sent).tobytes() == (trained.weights - start).tobytes()
    assert isinstance(sent, Update)
    assert (sent.round, sent.num_examples, sent.base_digest, sent.train_loss) == (3, 40, b"d", trained.train_loss)
    (evaluation,) = sent.evaluations
    assert (evaluation.device_id, evaluation.round, evaluation.has_received) == ("device-001", 3, False)


async def test_where_the_round_is_not_measured_no_measurement_goes_up() -> None:
    host = host_of("fedavg", **{"training.evaluate_every": 3})
    sent = await job_of(host, host.model.initial(7), lps_round=2).begin()
    assert isinstance(sent, Update)
    assert sent.evaluations == ()


async def test_a_second_training_of_a_round_draws_other_batches() -> None:
    host = host_of("fedavg")
    start = host.model.initial(0)
    work = work_of(host, received=[start], lps_round=0)
    first, again, second = [await work.train(start, number=stream) for stream in (0, 0, 1)]
    assert first.weights.tobytes() == again.weights.tobytes()
    assert first.weights.tobytes() != second.weights.tobytes()


async def test_arithmetic_that_is_done_once_is_done_once_for_all_rounds_of_a_process() -> None:
    host, made, count = host_of("fedavg"), {}, 0

    def make() -> int:
        nonlocal count
        count += 1
        return count

    works = [work_of(host, made=made, lps_round=number) for number in (-1, 0, 1)]
    assert await asyncio.gather(*(work.once("spectrum", make) for work in works)) == [1, 1, 1]
    assert await works[0].once("another", make) == 2


class OwnTraining(Method):
    """Adds one to all weights, and says that it has gone through eighty examples; tells its process who computes."""

    computed: ClassVar[list[tuple[str, int]]] = []  # thread, and how many others compute at the time
    computing = 0

    def channels(self, model: Any) -> Any:
        return all_layers(model, Reach.CLUSTER)

    async def local(self, work: Work) -> Outcome:
        weights = await work.compute(lambda: self.trained(work.start), trained_examples=80)
        return Outcome(weights=weights, train_loss=0.5)

    def trained(self, weights: Flat) -> Flat:
        OwnTraining.computing += 1
        OwnTraining.computed.append((threading.current_thread().name, OwnTraining.computing))
        added = weights + np.float32(1)
        OwnTraining.computing -= 1
        return added


async def test_a_training_of_a_methods_own_is_done_in_turn_on_the_training_thread_and_each_time_anew() -> None:
    host, OwnTraining.computed[:] = host_of("fedavg", own=OwnTraining), []
    works = [work_of(host, received=[np.float32([number])], lps_round=0) for number in range(20)]
    outcomes = await asyncio.gather(*(host.method.local(work) for work in works))
    assert [each.weights.tolist() for each in outcomes] == [[number + 1] for number in range(20)]
    assert OwnTraining.computed == [("arithmetic_0", 1)] * 20
    assert [work.trained_examples for work in works] == [80] * 20
    assert (await works[0].compute(lambda: 1), await works[0].compute(lambda: 2)) == (1, 2)


@pytest.mark.parametrize(("clock", "least_ns"), [("virtual", 0), ("real", 80_000_000)])
async def test_examples_of_a_training_of_a_methods_own_take_their_time_on_the_clock(clock: str, least_ns: int) -> None:
    host = host_of("fedavg", own=OwnTraining, clock=clock, compute="{per_example: 1ms}")
    sent = await job_of(host, host.model.initial(7)).begin()
    assert isinstance(sent, Update)
    assert sent.work is not None
    assert (sent.work.examples, sent.work.answer_examples) == (80, 0)
    assert sent.work.computed_ns >= least_ns
    np.testing.assert_allclose(values_of(sent), 1, rtol=0, atol=1e-6)


async def test_examples_trained_on_before_an_answer_are_said_with_it() -> None:
    class Asked(OwnTraining):
        questions, answer, plan = Norms.questions, Norms.answer, Norms.plan

    host = host_of("fedavg", own=Asked, clock="virtual", compute="{per_example: 1ms}")
    sent = await job_of(host, host.model.initial(7)).begin()
    assert isinstance(sent, Answer)
    assert sent.trained_examples == 80


async def test_less_than_no_trained_examples_are_refused() -> None:
    host = host_of("fedavg")
    with pytest.raises(PluginError, match="trained_examples is -1; give the number of examples used, 0 or more"):
        await work_of(host).compute(lambda: 1, trained_examples=-1)


def test_a_methods_work_has_the_examples_that_the_device_measures_on() -> None:
    host = host_of("fedavg")
    measured_on = device_data(host.experiment, host.dataset, 1).test
    assert work_of(host).held_out.inputs.tobytes() == measured_on.inputs.tobytes()


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (
            np.zeros(3, np.float32),
            r"method own:Method returned weights of float32 and shape \(3,\); .* of shape \(310,\)",
        ),
        (np.zeros(310), r"returned weights of float64 and shape \(310,\)"),
        ([1.0], "returned weights of type list; give Outcome.weights as float32"),
    ],
    ids=["shape", "dtype", "list"],
)
async def test_weights_of_another_model_are_no_outcome(weights: Any, message: str) -> None:
    class Wrong(OwnTraining):
        async def local(self, work: Work) -> Outcome:
            return Outcome(weights=weights, train_loss=0.5)

    host = host_of("fedavg", own=Wrong)
    with pytest.raises(PluginError, match=message):
        await job_of(host, host.model.initial(7)).begin()


def test_before_training_a_device_starts_from_the_initial_weights() -> None:
    host = host_of("fedavg")
    assert work_of(host).start.tobytes() == host.method.initial(host.model, 0).tobytes()


# --- a question when the models have come ---------------------------------------------------------


async def test_a_device_tells_how_each_clusters_model_does_and_trains_the_one_that_it_is_put_into() -> None:
    host = host_of("{name: ifca, clusters: 2}")
    models = [host.method.initial(host.model, cluster) for cluster in (0, 1)]
    job = job_of(host, np.concatenate(models), clusters=2)
    losses = answered(host, await job.begin())["losses"]
    measured = [await job.work.measure(model, on_own=True) for model in models]
    assert losses.tolist() == [each.loss for each in measured]
    assert losses[0] != losses[1]
    alone = host_of("fedavg")
    for cluster in (1, 0):
        sent = await job_of_cluster(host, models, cluster)
        expected = await job_of(alone, models[cluster]).begin()
        assert values_of(sent).tobytes() == values_of(expected).tobytes()


async def job_of_cluster(host: DeviceProcess, models: list[Flat], cluster: int) -> Update:
    job = job_of(host, np.concatenate(models), clusters=2)
    await job.begin()
    return await job.go_on(cluster)


async def test_of_some_clusters_models_a_device_knows_which_they_are_and_its_own_among_them() -> None:
    host = host_of("{name: ifca, clusters: 3}")
    models = [host.method.initial(host.model, cluster) for cluster in (0, 2)]
    job = job_of(host, np.concatenate(models), clusters=3, offered=(0, 2), cluster=2)
    assert list(job.work.offered) == [0, 2]
    assert [each.tobytes() for each in job.work.received] == [each.tobytes() for each in models]
    assert job.work.start.tobytes() == models[1].tobytes()
    sent = await job.go_on(0)
    expected = await job_of(host_of("fedavg"), models[0]).begin()
    assert values_of(sent).tobytes() == values_of(expected).tobytes()
    with pytest.raises(PayloadError, match="told to go on in cluster 1, which does not exist"):
        await job.go_on(1)


async def test_devices_are_asked_in_the_first_lps_round_of_a_global_round_and_not_in_the_others() -> None:
    host = host_of("{name: ifca, clusters: 2}")
    both = np.concatenate([host.method.initial(host.model, cluster) for cluster in (0, 1)])
    kinds = [type(await job_of(host, both, lps_round=number, clusters=2).begin()) for number in range(4)]
    assert kinds == [Answer, Update, Answer, Update]


TSDP = "{name: fedtsdp, batch: 5}"
WITH_PUBLIC = {"partition.public": "{examples: 20}", "training.lps_rounds_per_global_round": 1}


async def test_withdrawn_layers_go_on_at_the_device_from_what_it_has_trained_of_them() -> None:
    host, store = host_of(TSDP, **WITH_PUBLIC), KeptInMemory()
    start, layout = host.model.initial(0), host.model.layout
    first = job_of(host, start, store=store, told={"batch": np.arange(5)})
    await first.begin()
    await first.go_on(0)
    shared, gone = layout.names[:2], layout.names[2:]
    received = taken(host.model.initial(8), layout.slices_of(layout.select(shared)))
    second = job_of(host, received, lps_round=1, store=store, withdrawn=gone, told={"batch": np.arange(5)})
    views = layout.views(second.work.start)
    for name in gone:
        assert views[name].tobytes() == layout.views(first.work.trained)[name].tobytes()
    assert np.concatenate([views[name].reshape(-1) for name in shared]).tobytes() == received.tobytes()
    await second.begin()
    sent = await second.go_on(0)
    assert sent.codec.layout.names == shared
    assert len(values_of(sent)) == len(received)


async def test_what_a_device_is_told_that_its_method_does_not_tell_is_refused() -> None:
    host = host_of(TSDP, **WITH_PUBLIC)
    with pytest.raises(PayloadError, match="the answer to told"):
        job_of(host, host.model.initial(0), told={"other": np.arange(5)})


@pytest.mark.parametrize("cluster", [-1, 3, 1 << 40])
async def test_a_cluster_that_there_is_not_is_none_to_go_on_in(cluster: int) -> None:
    host = host_of("{name: ifca, clusters: 2}")
    job = job_of(host, np.concatenate([host.model.initial(0)] * 2), clusters=2)
    with pytest.raises(PayloadError, match="which does not exist"):
        await job.go_on(cluster)


# --- a question when devices have trained ---------------------------------------------------------


class Norms(Method):
    """Asks for the norm of the update, and counts trainings."""

    trained = 0

    def channels(self, model: Any) -> Any:
        return all_layers(model, Reach.CLUSTER)

    def questions(self) -> tuple[Question, ...]:
        return (Question(name="norm", moment=Moment.TRAINED, arrays={"norm": ("float64", (1,))}),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        return {"norm": np.linalg.norm(work.update.astype(np.float64)).reshape(1)}

    async def local(self, work: Work) -> Outcome:
        Norms.trained += 1
        return await super().local(work)

    def plan(self, moment: Moment, answers: Any, before: Plan | None) -> Plan:
        return Plan(clusters=((0, 1, 2),), rule="one")


async def test_what_was_trained_before_the_question_goes_up_after_it_and_nothing_is_trained_twice() -> None:
    host = host_of("fedavg", own=Norms)
    job = job_of(host, host.model.initial(3))
    before = Norms.trained
    norm = answered(host, await job.begin())["norm"]
    update = values_of(await job.go_on(2))  # one model was received, whatever the number of clusters has become
    again = values_of(await job.go_on(0))
    assert Norms.trained == before + 1
    assert norm[0] == np.linalg.norm(update.astype(np.float64))
    assert again.tobytes() == update.tobytes()


class Verbose(Norms):
    """Answers with more than a message holds."""

    def questions(self) -> tuple[Question, ...]:
        return (Question(name="norm", moment=Moment.TRAINED, arrays={"norm": ("float64", (1 << 20,))}),)

    async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
        return {"norm": np.zeros(1 << 20)}


async def test_an_answer_in_a_round_that_fits_no_message_is_refused_with_both_sizes() -> None:
    host = host_of("fedavg", own=Verbose)
    with pytest.raises(PluginError, match="norm has 8388608 bytes; at most 1048576"):
        await job_of(host, host.model.initial(3)).begin()


@pytest.mark.parametrize("given", [None, [0.5], {"norm": 0.5}])
async def test_an_answer_without_arrays_and_a_single_measurement_are_refused(given: Any) -> None:
    class Careless(Norms):
        async def answer(self, question: Question, work: Work, heard: Mapping[int, Any]) -> Arrays:
            return cast(Arrays, given)

        async def measure(self, work: Work) -> Any:
            return given

    host = host_of("fedavg", own=Careless)
    job = job_of(host, host.model.initial(3))
    with pytest.raises(PluginError, match=r"method own:Method: answer must return arrays by name, such as .*, not "):
        await job.begin()
    with pytest.raises(PluginError, match="method own:Method: measure must return two measurements, or"):
        await job.measured()


# --- what stays at the device ---------------------------------------------------------------------


@pytest.fixture
async def fed_per() -> AsyncIterator[DeviceProcess]:
    yield host_of("fedper")


async def test_layers_of_its_own_stay_at_the_device_and_are_trained_on_in_the_next_round(
    fed_per: DeviceProcess,
) -> None:
    host, store = fed_per, KeptInMemory()
    places = host.model.layout.slices_of(host.streams.travelling)
    initial = host.method.initial(host.model, 0)
    base = taken(initial, places)
    first = job_of(host, base, lps_round=0, store=store)
    assert first.work.start.tobytes() == initial.tobytes()
    sent = await first.begin()
    assert values_of(sent).size == base.size < initial.size
    (number, kept) = store.at(1) or (None, {})
    assert number == 1
    second = job_of(host, base + values_of(sent), lps_round=1, store=store)
    head = second.work.start[base.size :]
    assert head.tobytes() == kept[OWN_LAYERS].tobytes()
    assert np.abs(head - initial[base.size :]).max() > 0


async def test_a_round_that_is_done_again_by_another_process_has_the_same_bits(tmp_path: Path) -> None:
    host = host_of("{name: ditto, pull: 0.5}")
    model = host.model.initial(1)

    def store() -> PersonalStore:
        return store_in(tmp_path)

    await job_of(host, model, lps_round=0, store=store()).begin()
    sent = values_of(await job_of(host, model, lps_round=1, store=store()).begin())
    kept = store().at(2)
    again = values_of(await job_of(host, model, lps_round=1, store=store()).begin())  # killed before it was heard
    assert again.tobytes() == sent.tobytes()
    assert kept is not None
    assert (store().at(2) or (0, {}))[1]["model"].tobytes() == kept[1]["model"].tobytes()
    assert kept[1]["model"].tobytes() != (store().at(1) or (0, {}))[1]["model"].tobytes()


async def test_what_the_device_uses_and_what_it_received_are_both_measured_and_the_end_has_a_hash() -> None:
    host, store = host_of("{name: ditto, pull: 0.5}"), KeptInMemory()
    model = host.model.initial(1)
    await job_of(host, model, lps_round=0, store=store).begin()
    sent = await job_of(host, model, lps_round=1, store=store).begin()
    assert isinstance(sent, Update)
    (evaluation,) = sent.evaluations
    assert evaluation.has_received
    assert evaluation.loss_sum != evaluation.received_loss_sum
    final = job_of(host, model, lps_round=2, store=store)
    told = await final.measured()
    assert (told.round, told.has_received, len(told.personal_sha256)) == (2, True, 64)
    assert (await job_of(host, model, lps_round=2).measured()).personal_sha256 != told.personal_sha256


async def test_a_device_that_keeps_nothing_has_nothing_to_hash_or_to_write(tmp_path: Path) -> None:
    host = host_of("fedavg")
    store = store_in(tmp_path)
    job = job_of(host, host.model.initial(1), store=store)
    await job.begin()
    assert store.at(99) is None
    assert (await job.measured()).personal_sha256 == ""


async def test_states_that_nobody_can_go_back_to_are_removed(fed_per: DeviceProcess, tmp_path: Path) -> None:
    host = fed_per
    base = taken(host.method.initial(host.model, 0), host.model.layout.slices_of(host.streams.travelling))
    store = store_in(tmp_path)
    for number in range(7):
        await job_of(host, base, lps_round=number, store=store).begin()
    # in round 6 a global round began: both tiers above may go back to round 4, or to the round before it
    assert sorted(int(path.stem) for path in tmp_path.rglob("*.personal")) == [3, 4, 5, 6, 7]


class Secretive(Method):
    """Keeps something and does not say that it does."""

    async def local(self, work: Work) -> Outcome:
        outcome = await super().local(work)
        return Outcome(weights=outcome.weights, train_loss=0.0, personal={"model": outcome.weights})


async def test_a_method_that_keeps_state_says_so() -> None:
    host = host_of("fedavg", own=Secretive)
    with pytest.raises(PluginError, match="add has_personal_state = True"):
        await job_of(host, host.model.initial(0)).begin()


class Shrinking(Method):
    async def local(self, work: Work) -> Outcome:
        weights = work.start
        weights *= 0.5
        return Outcome(weights=weights, train_loss=0.0)


async def test_a_method_that_changes_the_received_model_in_place_is_refused() -> None:
    host = host_of("fedavg", own=Shrinking)
    with pytest.raises(PluginError, match="read-only"):
        await job_of(host, host.model.initial(0)).begin()


class Clashing(Secretive):
    has_personal_state = True

    async def local(self, work: Work) -> Outcome:
        return replace(await super().local(work), personal={"optimiser of mine": np.zeros(1)})


async def test_state_of_a_method_cannot_be_taken_for_that_of_the_optimiser() -> None:
    host = host_of("fedavg", own=Clashing)
    with pytest.raises(PluginError, match=r"Outcome\.personal has 'optimiser of mine', a name that Fedstrata uses"):
        await job_of(host, host.model.initial(0)).begin()


class Counting(Secretive):
    has_personal_state = True

    async def local(self, work: Work) -> Outcome:
        return replace(await super().local(work), personal=cast(Any, {"rounds": [1, 2], "loss": 0.5}))


async def test_plain_numbers_are_kept_as_arrays(tmp_path: Path) -> None:
    host = host_of("fedavg", own=Counting)
    for store in (store_in(tmp_path), KeptInMemory()):
        await job_of(host, host.model.initial(0), store=store).begin()
        found = store.at(1)
        assert found is not None
        assert {name: array.tolist() for name, array in found[1].items()} == {"rounds": [1, 2], "loss": 0.5}


async def test_a_table_travels_as_a_difference_and_one_of_the_devices_own_is_kept(tmp_path: Path) -> None:
    host, store = host_of("fedavg", own=Diary), store_in(tmp_path)
    received = np.concatenate([host.model.initial(1), np.float32([2, 5])])
    for number in range(2):
        job = job_of(host, received, lps_round=number, store=store)
        assert job.work.start.size == host.model.layout.size
        assert job.work.tables["rounds"].tolist() == [number]
        sent = values_of(await job.begin())
        assert sent[-2:].tolist() == [4, 10]
        assert not sent[:-2].any()
    kept = store.at(2)
    assert kept is not None
    assert kept[1][OWN_LAYERS].tolist() == [2]


# --- putting models together ----------------------------------------------------------------------


def test_what_was_received_and_what_was_kept_make_the_whole_model(fed_per: DeviceProcess) -> None:
    streams = fed_per.streams
    whole = np.arange(streams.model.size, dtype=np.float32)
    travelling = taken(whole, streams.model.slices_of(streams.travelling))
    own = taken(whole, streams.model.slices_of(streams.own))
    assert travelling.size + own.size == whole.size
    assert put_together(streams, travelling, own).tobytes() == whole.tobytes()


def test_a_vector_that_is_taken_whole_is_not_copied() -> None:
    whole = np.arange(6, dtype=np.float32)
    assert taken(whole, [slice(0, 6)]) is whole
    assert taken(whole, [slice(4, 6), slice(0, 1)]).tolist() == [4, 5, 0]
    assert taken(whole, []).size == 0
