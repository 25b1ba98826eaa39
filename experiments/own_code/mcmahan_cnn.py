"""The CNN of McMahan et al. 2017 for images of 28 x 28 pixels: 1,663,370 weights."""

from torch import nn


class McMahanCnn(nn.Sequential):
    """Two 5 x 5 convolutions to 32 and 64 channels with 2 x 2 max pooling, and a layer of 512 units."""

    def __init__(self) -> None:
        layers = (
            nn.Conv2d(1, 32, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(32, 64, 5, padding=2),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        super().__init__(*layers, nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10))
