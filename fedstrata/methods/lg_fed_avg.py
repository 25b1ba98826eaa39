"""LG-FedAvg (P. P. Liang et al., Think Locally, Act Globally: Federated Learning with Local and Global
Representations, 2020).

Device k trains its own representation l_k and the head g^t together. The heads are averaged, and the representations
stay on their devices: g^(t+1) = Σ_k n_k/n · g_k.

Departure: all representations begin with the same weights, drawn from the experiment's seed. The authors can also begin
with a model that was trained by FedAvg.
"""

from collections.abc import Mapping

from fedstrata.methods.base import Channel, Method, Reach, head_of
from fedstrata.models import Model


class LgFedAvg(Method):
    """Average the head over all devices, and keep the representation (`model.shared`) on each device."""

    def refuses(self) -> Mapping[str, str]:
        """Refuse a model without a representation or without a head."""
        return {"no body and head": "the method keeps the body on each device, and averages the head"}

    def channels(self, model: Model) -> tuple[Channel, ...]:
        """Return two channels: the head is averaged over all devices, and the representation stays on the device."""
        return (
            Channel(name="head", tensors=model.layout.select(head_of(model)), reach=Reach.EVERYWHERE),
            Channel(name="representation", tensors=model.layout.select(model.shared), reach=Reach.DEVICE),
        )
