"""One LPS round of a device, in stages: an answer if the method asks a question, local work, and the update."""

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from device.personal import Arrays, KeptInMemory, PersonalStore
from device.work import Beginning, DeviceProcess, DeviceWork, answered, put_into, put_together
from fedstrata.clock.device_side import Done
from fedstrata.errors import PayloadError, PluginError
from fedstrata.methods import Measurement, Method, Moment, Outcome, Question
from fedstrata.partitions import DeviceData
from fedstrata.privacy.updates import private_update, weight_of
from fedstrata.rounds import ReceivedModel, RoundClient, Update
from fedstrata.rpc.answer_messages import LARGEST_IN_A_ROUND, TOLD, arrays_of
from fedstrata.streams.architectures import Architecture
from fedstrata.tensors import Flat, Layout, PayloadCodec, taken, values_digest
from fedstrata.v1 import answers_pb2
from fedstrata.v1 import rounds_pb2 as pb

OWN_LAYERS = "own layers"  # name of the kept array with the channels that never leave the device
OPTIMISER = "optimiser "  # begins the names of an optimiser's arrays; other arrays are the method's


class Kept:
    """Read the state that a device has kept for an LPS round, and save the state for the next round."""

    def __init__(
        self,
        host: DeviceProcess,
        store: PersonalStore | KeptInMemory,
        device_index: int,
        received: ReceivedModel,
    ) -> None:
        self._host = host
        self._store = store
        self._round = received.round
        self._architecture = host.architectures.at(device_index, received.global_round)
        self.streams = self._architecture.streams.without(received.withdrawn)
        found = store.at(received.round) if host.keeps_state else None
        self.arrays: Arrays = found[1] if found else {}
        rounds = host.experiment.training.lps_rounds_per_global_round
        trained_in = (found[0] - 1) // rounds if found else received.global_round
        self._kept_of = host.architectures.at(device_index, trained_in)

    @property
    def personal(self) -> Arrays:
        """The arrays that the method has kept on this device."""
        return {
            name: array for name, array in self.arrays.items() if name != OWN_LAYERS and not name.startswith(OPTIMISER)
        }

    def optimisers(self) -> dict[int, Arrays]:
        """Return the kept states of the optimiser, by the number of a training. A device may train several times in an
        LPS round, and each training has its own state. If the device's model has changed since the states were kept,
        return an empty mapping.
        """
        found: dict[int, Arrays] = {}
        for name, array in self.arrays.items():
            if name.startswith(OPTIMISER) and self._kept_of is self._architecture:
                number, _, vector = name.removeprefix(OPTIMISER).partition("/")
                found.setdefault(int(number), {})[vector] = array
        return found

    def own_layers(self) -> Flat | None:
        """Return the values of the tensors that never leave this device, as they were at the end of the last round. If
        all tensors leave the device, return None.

        In the first round, all values are initial values. If the device has changed to another model, the model's
        tensors have initial values again. Then only the device's own tables (additional tensors of the method) keep
        their values.
        """
        streams, kept = self.streams, self.arrays.get(OWN_LAYERS)
        if not streams.own.size:
            return None
        was = self._layout(self._kept_of)
        if kept is not None and self._kept_of is self._architecture:
            return taken(kept, was.slices_of(streams.own))
        initial = streams.with_tables(self._host.method.initial(self._architecture.model, 0))
        own = taken(initial, streams.whole.slices_of(streams.own)).copy()
        if kept is not None:  # the device's model has changed: only its tables are kept
            tables = streams.own.select(streams.tables.names)
            put_into(own, streams.own.slices_of(tables), taken(kept, was.slices_of(tables)))
        return own

    def _layout(self, architecture: Architecture) -> Layout:
        """Return the layout of the tensors that this device keeps between rounds: the tensors that never leave it. If
        the method can decide during the run that more tensors stay on their device, the device keeps all tensors.
        """
        streams = architecture.streams
        return streams.whole if self._host.method.withdraws else streams.own

    async def keep(self, outcome: Outcome, optimisers: Mapping[int, Mapping[str, np.ndarray]]) -> None:
        """Save the state for the next round. Call this before anything of this round is sent."""
        host = self._host
        if outcome.personal and not host.method.has_personal_state:
            raise PluginError(
                f"method {host.experiment.method.name} keeps personal state: add has_personal_state = True to it"
            )
        if wrong := [name for name in outcome.personal if name == OWN_LAYERS or name.startswith(OPTIMISER)]:
            raise PluginError(f"Outcome.personal has {wrong[0]!r}, a name that Fedstrata uses itself; rename it")
        if not host.keeps_state:
            return
        kept = {name: np.asarray(array) for name, array in outcome.personal.items()}
        for number, state in optimisers.items():
            kept |= {f"{OPTIMISER}{number}/{name}": array for name, array in state.items()}
        layout, streams = self._layout(self._architecture), self._architecture.streams
        if layout.size:
            whole = streams.with_tables(outcome.weights, outcome.tables)
            kept[OWN_LAYERS] = taken(whole, streams.whole.slices_of(layout))
        await asyncio.to_thread(self._save, kept)

    def _save(self, kept: Mapping[str, np.ndarray]) -> None:
        number, rounds = self._round, self._host.experiment.training.lps_rounds_per_global_round
        self._store.save(number + 1, kept)
        if number % rounds == 0:  # GPS and LPS may go back one global round
            self._store.prune(number - rounds)


class RoundJob:
    """Do a device's work of one LPS round, which begins with a received model."""

    def __init__(
        self,
        host: DeviceProcess,
        data: DeviceData,
        received: ReceivedModel,
        *,
        device_index: int,
        device_id: str,
        client: RoundClient,
        store: PersonalStore | KeptInMemory,
        made: dict[str, object],
    ) -> None:
        self._host = host
        self._device_id = device_id
        self._client = client
        self.received = received
        self._began_ns = host.clock.now_ns()
        self._kept = Kept(host, store, device_index, received)
        self._travelling = self._by_cluster()
        for flat in self._travelling:  # the update is the difference to these values, so no method may change them
            flat.setflags(write=False)
        streams, own = self._kept.streams, self._kept.own_layers()
        wholes, size = [put_together(streams, flat, own) for flat in self._travelling], streams.model.size
        begins = Beginning(
            lps_round=received.round,
            global_round=received.global_round,
            cluster=received.cluster,
            received=[whole[:size] for whole in wholes],
            offered=received.offered,
            tables=[streams.tables.views(whole[size:]) for whole in wholes],
            personal=self._kept.personal,
            optimisers=self._kept.optimisers(),
            told=told(host.method, received),
        )
        self.work = DeviceWork(host, data, device_index, group=client.identity.home_id, made=made, begins=begins)
        self._outcome: Outcome | None = None
        self._said: answers_pb2.Answer | None = None  # if the method asks in the round
        self._answering_ns = 0  # on the real clock: the time that the answer took

    def _by_cluster(self) -> list[Flat]:
        """Return the received weights of each cluster. If the device has received only one model, return only this
        model.
        """
        received, streams = self.received, self._kept.streams
        if not received.clusters:
            return [received.flat]
        vector = streams.vector(received.offered or received.clusters)
        return [taken(received.flat, vector.of_cluster(cluster)) for cluster in vector.clusters]

    # --- stages -------------------------------------------------------------------------------

    async def begin(self) -> answers_pb2.Answer | Update:
        """Begin the round, and return the first message to send. It is an answer or, if the method asks no question in
        this round, the update.
        """
        if self._asks(Moment.RECEIVED):
            return await self._answer()
        return await self._train()

    async def go_on(self, cluster: int) -> Update:
        """Continue the round in this cluster, which was chosen after the device's answer. Return the update.

        Raises:
            PayloadError: there is no such cluster.
        """
        is_one = len(self._travelling) == 1
        known = range(self._host.experiment.device_count) if is_one else self.work.offered
        self._began_ns = self._host.clock.now_ns() - self._answering_ns
        if cluster not in known:
            raise PayloadError(f"told to go on in cluster {cluster}, which does not exist")
        if not is_one:
            self.work.go_on(cluster)
        if self._outcome is None:
            self._outcome = await self._local()
        return await self._update(self._outcome)

    def _asks(self, moment: Moment) -> bool:
        rounds = self._host.experiment.training.lps_rounds_per_global_round
        asked = any(question.moment is moment for question in self._host.method.questions())
        return asked and self.received.round % rounds == 0

    async def _local(self) -> Outcome:
        outcome = await self._host.method.local(self.work)
        weights: Any = outcome.weights if isinstance(outcome, Outcome) else None
        size, is_array = self.work.model.layout.size, isinstance(weights, np.ndarray)
        if not is_array or weights.shape != (size,) or weights.dtype != np.float32:
            given = f"{weights.dtype} and shape {weights.shape}" if is_array else f"type {type(weights).__name__}"
            raise PluginError(
                f"method {self._host.method.options.name} returned weights of {given}; give Outcome.weights as "
                f"float32 of shape ({size},), like work.start"
            )
        return outcome

    async def _train(self) -> answers_pb2.Answer | Update:
        self._outcome = outcome = await self._local()
        if not self._asks(Moment.TRAINED):
            return await self._update(outcome)
        self.work.note_training(outcome.weights, self._difference(outcome))
        return await self._answer()

    async def _answer(self) -> answers_pb2.Answer:
        method = self._host.method
        question = next(question for question in method.questions() if question.moment is not Moment.BEFORE)
        answer = await answered(method, question, self.work, {})
        if len(answer.data) > LARGEST_IN_A_ROUND:
            raise PluginError(
                f"the answer to {question.name} has {len(answer.data)} bytes; at most {LARGEST_IN_A_ROUND}"
            )
        self._said = answer
        self._answering_ns = await self._host.clock.answered(answer, self._done)
        return answer

    def _difference(self, outcome: Outcome) -> Flat:
        """Return the update: trained minus received values of the tensors that are sent."""
        streams, received = self._kept.streams, self._travelling[self.work.own_place]
        whole = streams.with_tables(outcome.weights, outcome.tables)
        difference: Flat = taken(whole, streams.whole.slices_of(streams.travelling)) - received
        return difference

    async def _update(self, outcome: Outcome) -> Update:
        await self._kept.keep(outcome, self.work.optimisers)
        update, received = await self._released(self._difference(outcome)), self.received
        measured = _evaluation(self._device_id, received.round, outcome.measured, outcome.measured_received)
        codec, note = encoded(self._client, update, self._kept.streams.travelling)
        return Update(
            round=received.round,
            num_examples=weight_of(self._host.experiment, len(self.work.examples)),
            codec=codec,
            note=note,
            read=lambda start, stop: update[start:stop],
            train_loss=outcome.train_loss,
            evaluations=(measured,) if measured is not None else (),
            base_digest=received.digest,
            work=await self._host.clock.worked(self._said, self._done),
            trained_from=await self._client.shield.trained_from(
                received, self._client.identity.home_id, self.work.cluster, self._host.compute_thread.compute
            ),
        )

    async def _released(self, update: Flat) -> Flat:
        """Return the update that is sent. If updates are private, its norm is clipped and noise is added."""
        budget, work = self._host.update_budget, self.work
        if budget is None:
            return update
        job = partial(private_update, device_index=work.device_index, lps_round=work.lps_round)
        return await self._host.compute_thread.compute(lambda: job(update, budget, work.noise))

    @property
    def _done(self) -> Done:
        work, began_ns = self.work, self._began_ns
        return Done(
            began_ns=began_ns, device_index=work.device_index, lps_round=work.lps_round, examples=work.trained_examples
        )

    # --- the end ------------------------------------------------------------------------------

    async def measured(self) -> pb.Evaluation:
        """Measure the model that this device uses at the end of the run. If this is the device's own model, also
        measure the received final model. Return both measurements in one message.
        """
        found: Any = await self._host.method.measure(self.work)
        if not (isinstance(found, tuple) and len(found) == 2):
            raise PluginError(
                f"method {self._host.method.options.name}: measure must return two measurements, or a measurement and "
                f"None, not {type(found).__name__}"
            )
        used, received = found
        evaluation = _evaluation(self._device_id, self.received.round, used, received)
        if evaluation is None:
            raise PluginError("the method measured nothing at the end of the run; return a measurement from measure()")
        if self._host.keeps_state:
            evaluation.personal_sha256 = _digest_of(self._kept.arrays)
        return evaluation


def encoded(client: RoundClient, update: Flat, layout: Layout) -> tuple[PayloadCodec, pb.UpdateHeader]:
    """Return the codec and the header of an update. If the encoding cannot hold a value of the update, the header's
    field `unfit` has the reason.
    """
    codec, note = client.codec_for(update, layout), pb.UpdateHeader()
    try:
        codec.check_fits([update])
    except PayloadError as error:  # the LPS must learn of this, because it waits for the update
        note.unfit = str(error)
    return codec, note


def told(method: Method, received: ReceivedModel) -> Arrays:
    """Return the arrays that the GPS sends to all devices together with a model. If the GPS sends no arrays, return an
    empty mapping.

    Raises:
        PayloadError: the arrays differ from the arrays that the method has declared.
    """
    if received.told is None:
        return {}
    return dict(arrays_of(Question(name=TOLD, moment=Moment.BEFORE, arrays=method.tells()), received.told))


def _evaluation(
    device_id: str, lps_round: int, used: Measurement | None, received: Measurement | None
) -> pb.Evaluation | None:
    if used is None:
        return None
    evaluation = pb.Evaluation(
        device_id=device_id,
        round=lps_round,
        loss_sum=used.loss_sum,
        sums=used.sums,
        num_examples=used.num_examples,
    )
    if received is not None:
        evaluation.has_received = True
        evaluation.received_loss_sum = received.loss_sum
        evaluation.received_sums.extend(received.sums)
    return evaluation


def _digest_of(arrays: Mapping[str, np.ndarray]) -> str:
    return values_digest(
        (name, array.dtype.name, array.shape, [array.astype(array.dtype.newbyteorder("<")).tobytes()])
        for name, array in arrays.items()
    )
