"""FedBN (X. Li et al., FedBN: Federated Learning on Non-IID Features via Local Batch Normalization, ICLR 2021).

Normalisation layers and their statistics stay on their devices. All other layers are averaged (Algorithm 1): w^(t+1) =
Σ_k n_k/n · w_k.

Departure: the weight of a device is its number of examples. In the paper all devices have the same number of examples.
"""

from collections.abc import Mapping

from fedstrata.methods.base import Channel, Method, Reach
from fedstrata.models import Model


class FedBn(Method):
    """Average all layers over all devices, except the normalisation layers, which stay on each device."""

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without normalisation layers."""
        return {"no normalisation": "the method keeps normalisation layers on devices, and the model has none"}

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the normalisation layers stay on the device, and the other layers are averaged over all
        devices.
        """
        others = [name for name in model.layout.names if name not in model.normalisations]
        return (
            Channel(name="shared", tensors=model.layout.select(others), reach=Reach.EVERYWHERE),
            Channel(name="norms", tensors=model.layout.select(model.normalisations), reach=Reach.DEVICE),
        )
