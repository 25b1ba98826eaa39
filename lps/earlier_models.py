"""The models of earlier LPS rounds that devices still train, in asynchronous rounds.

A device may be killed while its update is under way. It then trains the same model again. So this LPS keeps the model
on its disk until a round has taken the update, and as long as a restarted LPS may have to repeat that round.
"""

import asyncio
from collections.abc import Collection
from pathlib import Path
from typing import Protocol

from fedstrata.rounds import Offer
from fedstrata.store import GLOBAL_ROUNDS_KEPT, ModelFile
from fedstrata.store.model_file import write_model
from fedstrata.tensors import Layout
from fedstrata.v1 import gps_service_pb2 as gps_pb
from fedstrata.v1 import rounds_pb2 as pb
from lps.holding import Offers, SessionParts

Key = tuple[int, int]  # LPS round and stream


class EarlierModels(Protocol):
    """Define where a session gets the models of earlier rounds that children still train."""

    async def beside(self, offers: Offers, report: gps_pb.ReportHeader, number: int) -> Offers:
        """Return `offers`, the models of LPS round `number`, extended by the models of earlier rounds that devices
        still train. Keep the models with which this round begins, if later rounds may need them.
        """


class NoEarlierModels(EarlierModels):
    """Hold no models, because no update is under way when a synchronous round begins."""

    async def beside(self, offers: Offers, report: gps_pb.ReportHeader, number: int) -> Offers:
        return offers


class KeptModels(EarlierModels):
    """Keep the models on disk. For example, `from-000012-0.safetensors` is the model with the number 0 (see `Offers`)
    of LPS round 12.
    """

    def __init__(self, parts: SessionParts) -> None:
        self._parts = parts
        self._folder = parts.folder
        self._offers: dict[Key, Offer] = {}
        self._used: dict[Key, int] = {}  # newest LPS round in which a model was needed

    async def beside(self, offers: Offers, report: gps_pb.ReportHeader, number: int) -> Offers:
        names = {index: name for name, index in self._parts.members.indexes.items()}
        needed = {names[each.child]: (int(each.from_round), int(each.stream)) for each in report.under_way}
        await asyncio.to_thread(self._keep, number, offers, set(needed.values()))
        return offers._replace(earlier={name: self._offers[key] for name, key in needed.items()})

    def _keep(self, number: int, offers: Offers, needed: Collection[Key]) -> None:
        for stream, offer in offers.models.items():
            write_model(
                self._path((number, stream)), offer.model.layout, offer.model.pieces(), offer.model.metadata,
                durable=False, digest=offer.model.digest,
            )  # fmt: skip
        for key in needed:
            if key not in self._offers:
                self._open(key, offers.models[key[1]].model.layout)
        self._used.update(dict.fromkeys([*needed, *((number, stream) for stream in offers.models)], number))
        rounds = self._parts.rounds
        self._forget((number // rounds + 1 - GLOBAL_ROUNDS_KEPT) * rounds)

    def _open(self, key: Key, layout: Layout) -> None:
        """Prepare the offer of a model on disk. Raises StateError, which names the file, if the model is damaged."""
        experiment, (number, stream) = self._parts.lps.experiment, key
        model = ModelFile(self._path(key), layout)
        model.verify()
        offer = Offer(model, cluster=stream)
        header = pb.ModelHeader(
            run_id=self._parts.gps.attempt_id, round=number, global_round=number // self._parts.rounds
        )
        offer.announce(header, experiment.links.device_lps.down)
        self._offers[key] = offer

    def _forget(self, oldest: int) -> None:
        """Delete the models that no round from `oldest` on needs."""
        for key in [key for key, used in self._used.items() if used < oldest]:
            del self._used[key]
            if (offer := self._offers.pop(key, None)) is not None:
                offer.model.close()
            self._path(key).unlink(missing_ok=True)

    def _path(self, key: Key) -> Path:
        return self._folder / f"from-{key[0]:06d}-{key[1]}.safetensors"


def earlier_models(parts: SessionParts) -> EarlierModels:
    """Return the object that keeps models of earlier rounds for a session."""
    is_asynchronous = parts.lps.experiment.training.rounds.asynchronous is not None
    return KeptModels(parts) if is_asynchronous else NoEarlierModels()
