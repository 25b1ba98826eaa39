"""NVIDIA FLARE's simulator on the work of `benchmarks/loops.py`: each client one epoch, the mean over clients.

    .venv-peers/bin/python benchmarks/peers/flare_train.py --work DIR --devices 10 --rounds 8 --out FILE

Each client has a process and one thread. Without evaluation. FILE gets the seconds from round to round, as the first
client sees them. FLARE runs this file at each client, too.
"""

import argparse
import json
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import nvflare.client as flare
import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from loops import Network, read_work, train_one


def attend(options: argparse.Namespace) -> None:
    """Train one client in each round."""
    torch.set_num_threads(1)
    flare.init()
    client = int(flare.get_site_name().removeprefix("site-")) - 1
    inputs, labels = (array[client] for array in read_work(options.work))
    model, received = Network(), []
    while flare.is_running():
        message = flare.receive()
        if message is None:
            break
        received.append(time.perf_counter())
        model.load_state_dict({name: torch.as_tensor(values) for name, values in message.params.items()})
        train_one(model, inputs, labels, client + len(labels) * message.current_round)
        flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(labels)}))
    if client == 0:
        options.out.write_text(json.dumps({"seconds": [after - before for before, after in pairwise(received)]}))


def main() -> None:
    """Run the simulation, or a client of it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--client", action="store_true")
    options = parser.parse_args()
    if options.client:
        attend(options)
        return
    words = f"--client --work {options.work.resolve()} --devices 0 --out {options.out.resolve()}"
    recipe = FedAvgRecipe(
        name="ten", model=Network(), min_clients=options.devices, num_rounds=options.rounds + 1,
        train_script=str(Path(__file__).resolve()), train_args=words,
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        recipe.execute(SimEnv(num_clients=options.devices, workspace_root=folder))


if __name__ == "__main__":
    main()
