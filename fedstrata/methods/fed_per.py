"""FedPer (Arivazhagan et al., Federated Learning with Personalization Layers, 2019): the deep layers stay at home.

Departure: all heads begin with the same weights, those of the experiment's seed; theirs are drawn at each device.
"""

from fedstrata.methods.base import Channel, Method, Reach, shared_and_rest
from fedstrata.models import Model


class FedPer(Method):
    """Average the base layers (`model.shared`) over all devices, and keep a head on each device."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return the base everywhere, the head nowhere."""
        return shared_and_rest(model, Reach.DEVICE)
