"""Local training: no weight leaves a device, and none comes; what every other method has to be better than."""

from fedstrata.methods.base import Channel, Method, Reach, all_layers
from fedstrata.models import Model


class Local(Method):
    """Each device trains a model of its own, round after round."""

    bears_noise = False  # there is nothing to add it to

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Nothing travels."""
        return all_layers(model, Reach.DEVICE)
