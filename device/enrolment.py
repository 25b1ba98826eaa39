"""A device towards the GPS, before training: enrolment, profile, relevance row, assignment."""

from collections.abc import AsyncIterator
from typing import Any

import grpc
import numpy as np

from fedstrata.errors import PayloadError
from fedstrata.experiment import Experiment
from fedstrata.fault_points import reach
from fedstrata.link import CALL_S, HOLD_S, Backoff, payload_timeout_s
from fedstrata.logs import EventLog
from fedstrata.relevance import Spectrum, relevance
from fedstrata.rpc.client import ask, call_through_upgrade, call_until_answered, is_passing, refusal
from fedstrata.rpc.payload import PROFILE_PART, accepted_codec, payload_header
from fedstrata.tensors import Flat, Layout, PayloadCodec
from fedstrata.v1 import gps_service_pb2 as pb


class GpsLink:
    """The calls of one device to the GPS."""

    def __init__(
        self, gps: Any, experiment: Experiment, *, device_id: str, device_index: int, process_id: str, log: EventLog
    ) -> None:
        self._gps = gps
        self._experiment = experiment
        self._who = {"run_id": experiment.run_id, "device_id": device_id, "process_id": process_id}
        self._index = device_index
        self._log = log

    async def enroll(self, num_examples: int, pod_name: str) -> pb.EnrollResponse:
        """Make this device known to the run."""
        request = pb.EnrollRequest(
            device_id=self._who["device_id"],
            device_index=self._index,
            experiment_sha256=self._experiment.digest,
            num_examples=num_examples,
            process_id=self._who["process_id"],
            pod_name=pod_name,
        )
        reply: pb.EnrollResponse = await call_through_upgrade(
            lambda: self._gps.Enroll(request, timeout=CALL_S + HOLD_S, wait_for_ready=True), self._log, "Enroll"
        )
        return reply

    async def submit_profile(self, eigenvectors: Flat) -> None:
        """Share the leading eigenvectors, shape (k, d)."""
        layout = Layout.of({PROFILE_PART: eigenvectors.shape})
        codec, flat = PayloadCodec(layout, "float32"), eigenvectors.reshape(-1)
        header = pb.ProfileHeader(
            device_index=self._index, payload=payload_header(codec, name=PROFILE_PART), **self._who
        )

        async def parts() -> AsyncIterator[pb.ProfilePart]:
            yield pb.ProfilePart(header=header)
            for chunk in codec.chunks(lambda start, stop: flat[start:stop]):
                yield pb.ProfilePart(data=bytes(chunk))

        timeout_s = payload_timeout_s(codec.payload_bytes)
        await call_until_answered(
            lambda: self._gps.SubmitProfile(parts(), timeout=timeout_s, wait_for_ready=True),
            self._log,
            "SubmitProfile",
        )

    async def relate(self, spectrum: Spectrum) -> dict[int, float]:
        """Relevance of every other device's profile to this device's data, by index; no profile is kept.

        Each profile is folded into one number as it arrives, by itself, so that no grouping of arrivals and no
        thread count can change a bit.
        """
        row: dict[int, float] = {}
        backoff = Backoff()
        while True:
            request = pb.FetchProfilesRequest(from_index=max(row, default=-1) + 1, **self._who)
            timeout_s = CALL_S + HOLD_S * self._experiment.device_count
            try:
                call = self._gps.FetchProfiles(request, timeout=timeout_s, wait_for_ready=True)
                if await self._fold_profiles(call, spectrum, row):
                    return row
                backoff.reset()
            except grpc.aio.AioRpcError as error:
                if not is_passing(error):
                    raise refusal(error) from None
                await backoff.pause()

    async def _fold_profiles(
        self, parts: AsyncIterator[pb.ProfilePart], spectrum: Spectrum, row: dict[int, float]
    ) -> bool:
        """Fold one stream of profiles into the row; False when it ended with word to ask again."""
        header, data = pb.ProfileHeader(), bytearray()
        async for part in parts:
            match part.WhichOneof("part"):
                case "header":
                    header, data = part.header, bytearray()
                    self._check(header, spectrum)
                case "data":
                    data += part.data
                    reach("profile_relay")
                    if len(data) == header.payload.payload_bytes:
                        row[header.device_index] = self._relevance_of(header, bytes(data), spectrum)
                case _:
                    return False
        return True

    def _check(self, header: pb.ProfileHeader, spectrum: Spectrum) -> None:
        shapes = [tuple(tensor.shape) for part in header.payload.parts for tensor in part.tensors]
        features = spectrum.eigenvectors.shape[1]
        if len(shapes) != 1 or len(shapes[0]) != 2 or shapes[0][1] != features:
            raise PayloadError(f"a profile of shapes {shapes[:3]} from the GPS, expected k rows of {features} features")
        layout = Layout.of({PROFILE_PART: shapes[0]})
        accepted_codec(header.payload, layout=layout, encoding="float32", name=PROFILE_PART)

    def _relevance_of(self, header: pb.ProfileHeader, data: bytes, spectrum: Spectrum) -> float:
        rows = header.payload.parts[0].tensors[0].shape[0]
        profile = np.frombuffer(data, "<f4").reshape(rows, -1)
        return relevance(spectrum, profile, k=self._experiment.method.eigenvectors)

    async def submit_relevance(self, row: dict[int, float]) -> None:
        """Send the row of relevances."""
        reach("relevance")
        entries = [pb.Relevance(device_index=index, value=value) for index, value in sorted(row.items())]
        request = pb.SubmitRelevanceRequest(row=entries, **self._who)
        await ask(self._gps, "SubmitRelevance", request, self._log)

    async def assignment(self) -> pb.FetchAssignmentResponse:
        """Wait for the LPS that serves this device."""
        while True:
            request = pb.FetchAssignmentRequest(**self._who)
            reply: pb.FetchAssignmentResponse = await ask(self._gps, "FetchAssignment", request, self._log)
            if reply.is_assigned:
                return reply
