"""Text in four languages, byte by byte: each device has one of Debian's fortune files.

The files come with the packages fortunes, fortunes-min, fortunes-de, fortunes-es and fortunes-it.
"""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedstrata.datasets import Dataset, Examples
from fedstrata.errors import DataError

FOLDER = Path("/usr/share/games/fortunes")
FILES = {
    "english": ("computers", "songs-poems", "people", "science", "politics"),
    "german": ("de/witze", "de/unfug", "de/infodrom", "de/linuxtag", "de/ms"),
    "spanish": tuple(f"es/{name}.fortunes" for name in ("refranes", "sabiduria", "sentimientos", "arte", "vida")),
    "italian": ("it/zuse", "it/norm", "it/luke", "it/leggi", "it/itatrek"),
}
CONTEXT = 64  # bytes in a window
LARGEST_BYTES = 20_000  # the most bytes used of a file
HELD_OUT = 5  # every fifth window is for tests


def load(settings: Any) -> Dataset:
    """Return windows of bytes; the targets are the same bytes, one place on."""
    windows, files = [], []
    for number, name in enumerate(name for names in FILES.values() for name in names):
        text = np.frombuffer(_read(FOLDER / name), np.uint8)[:LARGEST_BYTES]
        windows.append(text[: len(text) // (CONTEXT + 1) * (CONTEXT + 1)].reshape(-1, CONTEXT + 1))
        files.append(np.full(len(windows[-1]), number))
    whole, file = np.concatenate(windows).astype(np.int64), np.concatenate(files)
    is_test = np.arange(len(whole)) % HELD_OUT == 0
    train, test = (_examples(whole[part], file[part]) for part in (~is_test, is_test))
    return Dataset(train=train, test=test, num_classes=256)


def _examples(windows: np.ndarray, file: np.ndarray) -> Examples:
    return Examples(inputs=windows[:, :-1].copy(), targets=windows[:, 1:].copy(), columns={"file": file})


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}; install Debian's fortunes packages") from None


def frequencies(inputs: np.ndarray) -> np.ndarray:
    """Return the roots of how often each byte stands in each window, shape (n, 256): a feature map for clustering."""
    counts = np.zeros((len(inputs), 256), np.float32)
    np.add.at(counts, (np.arange(len(inputs))[:, None], inputs), 1 / CONTEXT)
    return np.sqrt(counts)


class Transformer(nn.Module):
    """Predict each next byte from the bytes before it."""

    def __init__(self, width: int = 64, layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.position = nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, 4, 4 * width, dropout, batch_first=True, norm_first=True)
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(CONTEXT), persistent=False)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return scores of shape (n, places, 256)."""
        length = inputs.shape[1]
        hidden = self.embedding(inputs) + self.position[:length]
        for block in self.blocks:
            hidden = block(hidden, src_mask=self.mask[:length, :length], is_causal=True)
        return self.head(self.norm(hidden))
