"""A small network with batch normalisation and dropout, for digits."""

import torch
from torch import nn


class Normed(nn.Module):
    """64 inputs, a hidden layer, 10 outputs."""

    def __init__(self, width: int = 16, rate: float = 0.2) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(64, width, bias=False), nn.BatchNorm1d(width), nn.Linear(width, 10)
        self.drop = nn.Dropout(rate)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (n, 10)."""
        return self.last(self.drop(self.norm(self.first(inputs.flatten(1))).relu()))
