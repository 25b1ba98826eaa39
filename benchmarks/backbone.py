"""Memory and bytes of adapters of 1 MB on a frozen backbone of 100 MB, compared with the same adapters alone.

    python -m benchmarks.backbone

Runs FedAvg with ten devices on two LPSs twice, over gRPC. The file of weights has the backbone and the first adapters.
Prints the bytes on each link, and the peak resident size of the largest process of each tier. Fails if the links carry
other bytes, if the GPS or an LPS has 20 MB more, or if a device process holds the backbone more than once.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import nn

from benchmarks.suite.observed import peaks_of_run
from benchmarks.suite.programs import python

TIERS = ("gps", "lps", "device")
LAYERS, RANK = 16, 6
SERVER_MB, ONE_BACKBONE_MB = 20.0, 180.0
TIMES_BYTES, REPEATED_RATIO = 100, 0.001  # tolerance: for times of different lengths; calls that a longer run repeats
FILE = """
name: backbone
partition: {{kind: iid, devices: 10, examples_per_device: 20}}
model: {{name: "benchmarks.backbone:Adapted", options: {{width: {width}, backbone: {backbone}}}{weights}}}
method: fedavg
topology: {{lps: 2}}
training: {{global_rounds: 2, lps_rounds_per_global_round: 1, batch_size: 20}}
"""


class Adapted(nn.Module):
    """Define a dense network with an adapter of low rank next to each layer. With `backbone`, the layers are frozen.
    Without it, only the adapters and the head exist.
    """

    def __init__(self, *, width: int, backbone: bool) -> None:
        super().__init__()
        self.width = width
        wide = LAYERS if backbone else 0
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(wide)).requires_grad_(False)
        self.down = nn.ModuleList(nn.Linear(width, RANK, bias=False) for _ in range(LAYERS))
        self.up = nn.ModuleList(nn.Linear(RANK, width, bias=False) for _ in range(LAYERS))
        self.head = nn.Linear(width, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return outputs of shape (n, 10)."""
        now = nn.functional.pad(inputs.flatten(1), (0, self.width - 64))
        for place, (down, up) in enumerate(zip(self.down, self.up, strict=True)):
            wide = self.layers[place](now) if self.layers else now
            now = torch.tanh(wide + up(down(now)))
        out: torch.Tensor = self.head(now)
        return out


def measured(width: int, *, backbone: bool) -> tuple[dict[str, Any], dict[str, float]]:
    """Run the experiment with or without the backbone. Return the bytes of each link, and the peak MB by tier."""
    with tempfile.TemporaryDirectory() as folder:
        file, out, weights = (Path(folder, name) for name in ("run.yaml", "out", "backbone.safetensors"))
        if backbone:
            save_file(Adapted(width=width, backbone=True).state_dict(), weights)
        said = f", weights: {weights}" if backbone else ""
        file.write_text(FILE.format(width=width, backbone=str(backbone).lower(), weights=said))
        command = python("-m", "emulator", "run", str(file), "--out", str(out))
        peaks = peaks_of_run(command, timeout_s=600, log=Path(folder, "errors.log"))
        summary = json.loads((out / "summary.json").read_text())
    return summary["bytes"], {tier: peaks[tier] for tier in TIERS}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=1_250, help="inputs and outputs of each of the 16 layers")
    width = parser.parse_args().width
    alone, adapted = measured(width, backbone=False), measured(width, backbone=True)
    for name, (links, peaks) in {"adapters alone": alone, "with backbone": adapted}.items():
        print(f"{name}: {links}")
        print("  peak MB: " + ", ".join(f"{tier} {peak:.0f}" for tier, peak in peaks.items()))
    more = {tier: adapted[1][tier] - alone[1][tier] for tier in TIERS}
    print("more MB with the backbone: " + ", ".join(f"{tier} {each:.0f}" for tier, each in more.items()))
    fits = max(more["gps"], more["lps"]) <= SERVER_MB and more["device"] <= ONE_BACKBONE_MB
    is_alike = all(
        abs(adapted[0][link][way] - count) <= max(TIMES_BYTES, REPEATED_RATIO * count)
        for link, ways in alone[0].items()
        for way, count in ways.items()
    )
    return 0 if fits and is_alike else 1


if __name__ == "__main__":
    sys.exit(main())
