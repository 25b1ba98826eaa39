"""Flower's simulation (Ray) on the work of `benchmarks/loops.py`: one epoch per client, then the mean over clients.

With `--module`, clients train as in `benchmarks/modules.py`. With `--cohort`, only some clients train in each round.

    .venv-peers/bin/python benchmarks/peers/flower_train.py --work DIR --devices 100 --rounds 8 --out FILE

One client per core trains at a time, on one thread. Nothing is evaluated. FILE gets the seconds from round to round.
"""

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

sys.path.insert(0, str(Path(__file__).parents[1]))
import modules
from loops import BATCH, LEARNING_RATE, WIDTHS, Network, read_work, train_one

client_app, server_app = ClientApp(), ServerApp()
_options = argparse.Namespace()


def work_of(config: ConfigRecord):
    """Return the module of the configuration and its training. Without a name, return the network and the training of
    `benchmarks/loops.py`.
    """
    if config["module"]:
        return modules.network(str(config["module"])), modules.train_one
    return Network(config["widths"]), partial(train_one, size=int(config["batch"]), rate=float(config["rate"]))


@client_app.train()
def train(message: Message, context: Context) -> Message:
    """Train one client for one epoch from the received weights."""
    config = message.content.config_records["config"]
    torch.set_num_threads(1)
    client = int(context.node_config["partition-id"])
    inputs, labels = (array[client] for array in read_work(Path(str(config["work"]))))
    model, train_client = work_of(config)
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    loss = train_client(model, inputs, labels, client + len(labels) * int(config["server-round"]))
    metrics = MetricRecord({"num-examples": len(labels), "train_loss": loss})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


class TimedFedAvg(FedAvg):
    """Average like FedAvg, and note when each round begins and when its mean is computed."""

    def __init__(self, clients: int, cohort: int) -> None:
        super().__init__(
            fraction_train=cohort / clients, fraction_evaluate=0.0, min_train_nodes=cohort, min_available_nodes=clients
        )
        self.began: list[float] = []
        self.ended: list[float] = []

    def configure_train(self, *arguments, **named):
        self.began.append(time.perf_counter())
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        failed = [reply for reply in replies if reply.has_error()]
        if failed or len(replies) != self.min_train_nodes:
            raise RuntimeError(
                f"{len(replies)} of {self.min_train_nodes} clients answered, {len(failed)} with an error"
            )
        result = super().aggregate_train(server_round, replies)
        self.ended.append(time.perf_counter())
        return result


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run all rounds, and write their times to the file."""
    strategy = TimedFedAvg(_options.devices, _options.cohort or _options.devices)
    torch.manual_seed(0)
    names = ("module", "widths", "batch", "rate")
    config = ConfigRecord({"work": str(_options.work.resolve()), **{name: vars(_options)[name] for name in names}})
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(work_of(config)[0].state_dict()),
        train_config=config,
        num_rounds=_options.rounds,
    )
    seconds = [ended - began for began, ended in zip(strategy.began, strategy.ended, strict=True)]
    _options.out.write_text(json.dumps({"seconds": seconds}))


def main() -> None:
    """Run the simulation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--devices", type=int, required=True)
    parser.add_argument("--module", choices=modules.MODULES, default="")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--cohort", type=int, help="clients in a round; default: all")
    parser.add_argument("--widths", type=int, nargs="+", default=list(WIDTHS))
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rate", type=float, default=LEARNING_RATE)
    parser.add_argument("--out", type=Path, required=True)
    parser.parse_args(namespace=_options)
    cores = len(os.sched_getaffinity(0))
    backend = {
        "init_args": {"num_cpus": cores, "include_dashboard": False, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server_app, client_app, num_supernodes=_options.devices, backend_config=backend)


if __name__ == "__main__":
    main()
