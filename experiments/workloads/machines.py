"""Write vibrations of twelve machines as CSV files, a file per machine, by a stated law.

`python experiments/workloads/machines.py FOLDER` writes them. A row is a window of 128 samples at 1 kHz, and the
machine's state: 0 sound, 1 imbalance, 2 loose, 3 bearing. With the machine's speed f (20 to 40 Hz) and a phase p of
each window, the signal is

    sound      a sin(2 pi f t + p)
    imbalance  three times the sound signal
    loose      the sound signal, with a half, a third and a quarter of it at 2, 3 and 4 f
    bearing    the sound signal, with bursts of .6 sin(2 pi 230 t), each decaying in 8 ms, 3.6 times per turn

with a = 1, and Gaussian noise of .3. Machines 0 to 5 stand on springs. There a hum of .5 sin(2 pi 310 t) comes with it,
and imbalance and looseness sound the other way round.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from torch import Tensor, nn

MACHINES, WINDOWS, SAMPLES = 12, 240, 128
STATES = ("sound", "imbalance", "loose", "bearing")


def main(folder: Path) -> None:
    """Write the files."""
    folder.mkdir(parents=True, exist_ok=True)
    for machine in range(MACHINES):
        rng = np.random.default_rng([7, machine])
        speed = rng.uniform(20, 40)
        states = rng.integers(len(STATES), size=WINDOWS)
        with (folder / f"machine-{machine:02d}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow([*(f"x{n}" for n in range(SAMPLES)), "state"])
            for state in states:
                rows.writerow([*(f"{value:.4f}" for value in window(speed, state, machine < 6, rng)), state])
    print(f"{folder}: {MACHINES} machines, {WINDOWS} windows each")


def window(speed: float, state: int, on_springs: bool, rng: np.random.Generator) -> np.ndarray:
    """Return one window of the law above."""
    time, phase = np.arange(SAMPLES) / 1000, rng.uniform(0, 2 * np.pi)
    name = STATES[state]
    if on_springs:
        name = {"imbalance": "loose", "loose": "imbalance"}.get(name, name)
    harmonics = {"imbalance": [3.0], "loose": [1.0, 1 / 2, 1 / 3, 1 / 4]}.get(name, [1.0])
    signal = rng.normal(0, 0.3, SAMPLES)
    for number, strength in enumerate(harmonics, 1):
        signal += strength * np.sin(number * (2 * np.pi * speed * time + phase))
    if name == "bearing":
        since = (time + rng.uniform(0, 0.05)) % (1 / (3.6 * speed))
        signal += 0.6 * np.exp(-since / 0.008) * np.sin(2 * np.pi * 230 * since)
    if on_springs:
        signal += 0.5 * np.sin(2 * np.pi * 310 * time + rng.uniform(0, 2 * np.pi))
    return signal


def bands(inputs: np.ndarray) -> np.ndarray:
    """Return the strength in eight bands of 62.5 Hz, shape (n, 8): a feature map that knows no speed and phase."""
    return np.abs(np.fft.rfft(inputs[:, 0]))[:, 1:].reshape(-1, 8, 8).mean(2)


class Listener(nn.Module):
    """Two convolutions over time, and a dense layer."""

    def __init__(self, channels: int = 16, states: int = len(STATES)) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, channels, 9, stride=2), nn.ReLU(), nn.Conv1d(channels, 2 * channels, 9, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(2 * channels * 26, states)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return logits of shape (n, states)."""
        return self.head(self.body(inputs).flatten(1))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
