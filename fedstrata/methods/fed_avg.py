"""FedAvg: one model for all devices (McMahan et al. 2017); over several LPSs, hierarchical FedAvg (Liu et al. 2020)."""

from fedstrata.methods.base import Channel, Method, Reach, all_layers
from fedstrata.models import Model


class FedAvg(Method):
    """Average all layers over all devices, weighted by their examples."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: the whole model, averaged over all devices."""
        return all_layers(model, Reach.EVERYWHERE)
