"""Local training: no weights are sent. It is the baseline that every other method should exceed."""

from collections.abc import Mapping

from fedstrata.methods.base import Channel, Method, Reach, all_layers
from fedstrata.models import Model


class Local(Method):
    """Train one model per device, and send no weights."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return one channel: all layers stay on the device, so servers have no weights."""
        return all_layers(model, Reach.DEVICE)

    def refuses(self) -> Mapping[str, str]:
        """Refuse noise, because devices send no updates."""
        return {"privacy.updates": "the method sends no updates to which noise could be added"}
