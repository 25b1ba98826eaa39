"""The rounds of a device that attacks on purpose (section `attacks`): it trains on changed examples, or sends another
update than the one that it has computed.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from device.round_job import RoundJob, encoded
from device.rounds import DeviceRounds
from fedstrata.attacks import Entry
from fedstrata.datasets import Examples
from fedstrata.partitions import DeviceData
from fedstrata.privacy.updates import weight_of
from fedstrata.rounds import ReceivedModel, RoundClient, Update
from fedstrata.rounds.child.models_and_updates import Offered
from fedstrata.v1 import answers_pb2


class LyingRounds(DeviceRounds):
    """Run the LPS rounds of a device that attacks. Measurements are honest. The answer to a question of a round comes
    from the changed examples, as the training does.
    """

    @cached_property
    def _lies(self) -> list[Entry]:
        """The attacks of this device."""
        return self._host.attacks_by(self._index)

    @cached_property
    def _changed(self) -> dict[tuple[int, ...], tuple[DeviceData, dict[str, Any]]]:
        """The device's data with changed examples, and the values that the method computes once from these data. The
        keys are the numbers of the attacks that are active in a round.
        """
        return {}

    def stated(self, examples: int) -> int:
        for entry in self._lies:
            examples = entry.num_examples(examples)
        return examples

    def _on(self, global_round: int) -> list[Entry]:
        return [entry for entry in self._lies if entry.is_on(global_round)]

    def _round_job(
        self, client: RoundClient, received: ReceivedModel, data: DeviceData, made: dict[str, Any]
    ) -> RoundJob:
        on = self._on(received.global_round)
        if on:
            key = tuple(entry.number for entry in on)
            if key not in self._changed:
                self._changed[key] = replace(data, train=self._examples(data.train, on)), {}
            data, made = self._changed[key]
        return super()._round_job(client, received, data, made)

    def _examples(self, examples: Examples, on: Sequence[Entry]) -> Examples:
        for entry in on:
            examples = entry.examples(examples, self._host.dataset.num_classes, self._index)
        return examples

    async def _exchange(
        self, client: RoundClient, goes_up: Update | answers_pb2.Answer | None, *, is_announced: bool
    ) -> Offered:
        if isinstance(goes_up, Update):
            honest = goes_up
            goes_up = await self._host.compute_thread.compute(lambda: self._lied(client, honest))
        return await super()._exchange(client, goes_up, is_announced=is_announced)

    def _lied(self, client: RoundClient, honest: Update) -> Update:
        """Return the update that is sent in place of an honest update. The same honest update always
        gives the same result.
        """
        layout, rounds = honest.codec.layout, self._host.experiment.training.lps_rounds_per_global_round
        update = honest.read(0, layout.size)
        for entry in self._on(honest.round // rounds):
            update = entry.update(update, self._index, honest.round)
        codec, note = encoded(client, update, layout)
        stated = weight_of(self._host.experiment, self.stated(honest.num_examples))
        return replace(honest, num_examples=stated, codec=codec, note=note, read=lambda start, stop: update[start:stop])
