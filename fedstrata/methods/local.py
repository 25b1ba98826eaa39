"""Local training: no weight travels. Every other method has to be better than this one."""

from collections.abc import Mapping

from fedstrata.methods.base import Channel, Method, Reach, all_layers
from fedstrata.models import Model


class Local(Method):
    """Train one model per device, without any exchange."""

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return no channel: nothing travels."""
        return all_layers(model, Reach.DEVICE)

    def refuses(self) -> Mapping[str, str]:
        """Refuse noise, because nothing would carry it."""
        return {"privacy.updates": "the method sends no update that could be noised"}
