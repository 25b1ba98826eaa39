"""Secure aggregation at a device: masks on its updates."""

from collections.abc import Callable
from pathlib import Path

from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.rounds import Shield
from fedstrata.rounds.child.models_and_updates import PLAIN
from fedstrata.trust.security import Security


def shields(experiment: Experiment, security: Security, state: Path | None) -> Callable[[str], Shield]:
    """Return a function. For a device id, this function returns the object that prepares the device's updates before
    they are sent. With secure aggregation, this is a new `Masks` object with its own key. Otherwise it is `PLAIN`,
    which changes nothing, and the packages for masks are not imported.

    Raises:
        ExperimentError: secure aggregation needs a `--state` folder, which the process does not have.
    """
    if experiment.secure_aggregation is None:
        return lambda device_id: PLAIN
    if state is None:
        raise ExperimentError(
            "secure_aggregation: this device has no folder for what it has masked. After a restart an LPS could ask it "
            "for the same update in another sum, and the two sums reveal updates; give --state"
        )
    from device.masking.masks import Masks
    from fedstrata.trust.mask_proofs import Proofs

    proofs = Proofs(experiment.run_id, security.tls)
    return lambda device_id: Masks(experiment, device_id, proofs, state)
