"""FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019): the last layers (head) stay on
devices.

Departure: all heads begin with the same weights, from the experiment's seed. In the paper each device draws its first
head.
"""

from fedstrata.methods.base import Channel, Method, Reach, shared_and_rest
from fedstrata.models import Model


class FedPer(Method):
    """Average the base layers (`model.shared`) over all devices, and keep a head on each device."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the base is averaged over all devices, and the head stays on the device."""
        return shared_and_rest(model, Reach.DEVICE)
