"""FedAvg in which devices train by Adam."""

import numpy as np

from fedstrata.methods import Outcome
from fedstrata.methods.fed_avg import FedAvg


class ByAdam(FedAvg):
    async def local(self, work):
        """One epoch in batches of 20."""
        measured = await work.measure(work.start)
        weights, loss = await work.compute(lambda: trained(work), trained_examples=len(work.examples))
        return Outcome(weights=weights, train_loss=loss, measured=measured)


def trained(work):
    import torch  # devices have it; GPS and LPS may not
    from torch.nn.functional import cross_entropy

    rng = np.random.default_rng([work.seed, work.device_index, work.lps_round])  # the same draws in every process
    outputs = work.model.outputs_in_training(rng)
    weights = {name: torch.tensor(view).requires_grad_() for name, view in work.model.layout.views(work.start).items()}
    adam, losses = torch.optim.Adam(weights.values(), lr=0.01), []
    order = rng.permutation(len(work.examples))
    for start in range(0, len(order), 20):
        batch = work.examples.take(order[start : start + 20])
        loss = cross_entropy(outputs(weights, torch.tensor(batch.inputs)), torch.tensor(batch.labels))
        adam.zero_grad()
        loss.backward()
        adam.step()
        losses.append(loss.item())
    arrays = {name: tensor.detach().numpy() for name, tensor in weights.items()}
    return work.model.layout.flatten(arrays), float(np.mean(losses))
