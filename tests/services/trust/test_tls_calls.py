"""Runs over TLS with calls that others lack: questions in rounds, clusters over several LPSs, one that is adopted."""

from pathlib import Path

import pytest

from fedstrata.experiment import Experiment
from fedstrata.trust.authority import Authority
from tests.support.tiers import Tiers, small

# Devices of both clusters at both LPSs, asked in each global round.
SPANNING = small("method=ifca", "topology={lps: 2, devices: [[0, 2, 4], [1, 3]]}", "training.global_rounds=2")
# lps-0 never comes: lps-1 adopts its cluster.
ADOPTED = small(
    "method=oracle",
    "deadlines.gps={deadline_s: 1, quorum_ratio: 0.5}",
    "deadlines.lps={deadline_s: 30, quorum_ratio: 0.5}",
)


class WithoutFirst(Tiers):
    """A run whose first LPS does not start."""

    async def _have_lps(self, count: int) -> None:
        if "lps-1" not in self.lps and count > 1:
            await self.start_lps("lps-1")


@pytest.mark.parametrize(
    ("kind", "experiment"), [(Tiers, SPANNING), (WithoutFirst, ADOPTED)], ids=["spanning", "adopted"]
)
async def test_nobody_of_a_run_over_tls_is_refused_what_is_its_to_call(
    tmp_path: Path, kind: type[Tiers], experiment: Experiment
) -> None:
    authority = Authority.new(experiment.run_id)
    async with kind(experiment, tmp_path / "run", authority=authority) as tiers:
        await tiers.start_devices()
        record = await tiers.ended()
    assert (record.summary.status, record.summary.reason) == ("completed", None)
    assert bool(tiers.run.serving.handovers) is (kind is WithoutFirst)
    for metrics in (tiers.metrics, *(lps.metrics for lps in tiers.lps.values())):
        assert "fedstrata_refused_total" not in {
            sample.name for family in metrics.registry.collect() for sample in family.samples
        }
