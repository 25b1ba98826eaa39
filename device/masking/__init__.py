"""Secure aggregation at a device: masks on its updates."""

from collections.abc import Callable

from fedstrata.experiment import Experiment
from fedstrata.rounds import Shield
from fedstrata.rounds.models_and_updates import PLAIN
from fedstrata.trust.security import Security


def shields(experiment: Experiment, security: Security) -> Callable[[str], Shield]:
    """Return a function. For a device id, this function returns the object that prepares the device's updates before
    they are sent. With secure aggregation, this is a new `Masks` object with its own key. Otherwise it is `PLAIN`,
    which changes nothing, and the packages for masks are not imported.
    """
    if experiment.secure_aggregation is None:
        return lambda device_id: PLAIN
    from device.masking.masks import Masks
    from fedstrata.trust.mask_proofs import Proofs

    proofs = Proofs(experiment.run_id, security.tls)
    return lambda device_id: Masks(experiment, device_id, proofs)
