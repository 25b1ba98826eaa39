"""Children leave a parent that is there the time it needs: their calls outside rounds have an hour."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from fedstrata.process.time_limits import PATIENCE_S
from fedstrata.v1 import gps_service_pb2 as pb
from fedstrata.v1 import lps_service_pb2 as lps_pb
from gps.servicer import GpsServicer
from lps.servicer import LpsServicer
from tests.support.tiers import Tiers, small

LATER_S = 120.0  # a call may reach its handler later than it was made, and gRPC rounds what is left up


async def test_calls_outside_rounds_have_an_hour_to_be_answered(tmp_path: Path) -> None:
    left_s: dict[str, float] = {}

    class Gps(GpsServicer):
        async def Enroll(self, request: pb.EnrollRequest, context: Any) -> pb.EnrollResponse:
            left_s["Enroll"] = context.time_remaining()
            return await super().Enroll(request, context)

        async def FetchAssignment(self, request: pb.FetchAssignmentRequest, context: Any) -> pb.FetchAssignmentResponse:
            left_s["FetchAssignment"] = context.time_remaining()
            return await super().FetchAssignment(request, context)

        async def RegisterLps(self, request: pb.RegisterLpsRequest, context: Any) -> pb.RegisterLpsResponse:
            left_s["RegisterLps"] = context.time_remaining()
            return await super().RegisterLps(request, context)

        async def SubmitReport(self, requests: AsyncIterator[pb.ReportPart], context: Any) -> pb.SubmitReportResponse:
            left_s["SubmitReport"] = context.time_remaining()
            return await super().SubmitReport(requests, context)

    class Lps(LpsServicer):
        async def SubmitEvaluation(
            self, request: lps_pb.SubmitEvaluationRequest, context: Any
        ) -> lps_pb.SubmitEvaluationResponse:
            left_s["SubmitEvaluation"] = context.time_remaining()
            return await super().SubmitEvaluation(request, context)

    async with Tiers(small("method=fedavg"), tmp_path / "run", Gps, Lps) as tiers:
        await tiers.start_devices()
        await tiers.ended()
    assert left_s.keys() == {"Enroll", "FetchAssignment", "RegisterLps", "SubmitEvaluation", "SubmitReport"}
    assert all(abs(seconds - PATIENCE_S) < LATER_S for seconds in left_s.values()), left_s
