"""BlazeFL on the work of `benchmarks/workers.yaml`, with the network and settings of BlazeFL's own benchmark.

    .venv-peers/bin/python benchmarks/peers/blazefl_train.py --work DIR --epochs 5 --workers 2 --out FILE

Each client is trained in one of `--workers` processes, on one thread. Without evaluation, because ours has none. FILE
gets the seconds of each round, and the SHA-256 of the final weights.
"""

import argparse
import hashlib
import json
import os
import tempfile
import time
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # processes that train inherit it

import numpy as np
import torch
import torch.multiprocessing as mp
from blazefl.contrib import FedAvgBaseServerHandler, FedAvgProcessPoolClientTrainer
from blazefl.core import IPCMode, serialize_model
from blazefl.reproducibility import setup_reproducibility
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROUNDS, BATCH, LEARNING_RATE, SEED, SHAPE = 2, 50, 0.1, 42, (3, 32, 32)


class Cnn(nn.Sequential):
    """The network of `benchmarks/blazefl-case` in BlazeFL's repository, which is also Fedstrata's `cnn`."""

    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10),
        )  # fmt: skip


class Selector:
    """Make the network from the seed."""

    def select_model(self, model_name: str) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(SEED)
            return Cnn()


class Work:
    """Read clients' examples from files that `benchmarks.suite` has written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def arrays(self):
        return [np.load(self._folder / f"{name}.npy", mmap_mode="r") for name in ("inputs", "labels")]

    def set_dataset(self, type_, cid, dataset) -> None:
        """Ignore the data set, which training does not change."""

    def get_dataloader(self, type_, cid, batch_size=None, generator=None) -> DataLoader:
        inputs, labels = (torch.from_numpy(np.array(array[cid])) for array in self.arrays())
        dataset = TensorDataset(inputs.reshape(-1, *SHAPE), labels)
        return DataLoader(dataset, batch_size=batch_size, shuffle=True, generator=generator)


def main() -> None:
    """Run the rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--epochs", type=int, required=True)
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    setup_reproducibility(SEED)
    work = Work(options.work)
    common = {
        "model_selector": Selector(), "model_name": "CNN", "dataset": work, "num_clients": len(work.arrays()[0]),
        "device": "cpu", "batch_size": BATCH, "seed": SEED,
    }  # fmt: skip
    handler = FedAvgBaseServerHandler(**common, global_round=ROUNDS, sample_ratio=1.0)
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        trainer = FedAvgProcessPoolClientTrainer(
            **common, share_dir=Path(folder, "share"), state_dir=Path(folder, "state"), epochs=options.epochs,
            lr=LEARNING_RATE, num_parallels=options.workers, ipc_mode=IPCMode.SHARED_MEMORY,
        )  # fmt: skip
        while not handler.if_stop():
            began = time.perf_counter()
            trainer.local_process(handler.downlink_package(), handler.sample_clients())
            for package in trainer.uplink_package():
                handler.load(package)
            seconds.append(time.perf_counter() - began)
    weights = serialize_model(handler.model).numpy().tobytes()
    options.out.write_text(json.dumps({"seconds": seconds, "sha256": hashlib.sha256(weights).hexdigest()}))


if __name__ == "__main__":
    mp.set_start_method("spawn")  # as BlazeFL's benchmark does
    main()
