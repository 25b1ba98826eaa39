"""FedAvg: one model for all devices (McMahan et al. 2017). With several LPSs it is hierarchical FedAvg (Liu et al.
2020).
"""

from fedstrata.methods.base import Channel, Method, Reach, all_layers
from fedstrata.models import Model


class FedAvg(Method):
    """Average all layers over all devices. The weight of a device is its number of examples."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: the whole model, averaged over all devices."""
        return all_layers(model, Reach.EVERYWHERE)
