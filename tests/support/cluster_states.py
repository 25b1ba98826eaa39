"""A cluster's state in a folder, without an optimiser."""

from pathlib import Path

from fedstrata.experiment.sections import NoOptimiserSettings
from fedstrata.optimisers.server_optimisers import server_optimiser
from fedstrata.tensors import Layout
from lps.kept.state import ClusterState


def state_in(folder: Path, layout: Layout, *, run_id: str = "run-1", rounds_per_global: int = 2) -> ClusterState:
    """The state of cluster lps-0, which has the given number of LPS rounds per global round."""
    return ClusterState(
        folder, run_id=run_id, home_id="lps-0", layout=layout, rounds_per_global=rounds_per_global,
        optimiser=server_optimiser(NoOptimiserSettings(name="none")),
    )  # fmt: skip
