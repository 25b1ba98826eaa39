"""Rounds of FedAvg over clients that echo. The duration of each round goes to a file."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

app = ServerApp()


class TimedFedAvg(FedAvg):
    """Average like FedAvg, and note when each round begins and when its mean is computed."""

    def __init__(self, clients: int) -> None:
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self.began: list[float] = []
        self.ended: list[float] = []

    def configure_train(self, *arguments, **named):
        messages = super().configure_train(*arguments, **named)  # waits until all clients have connected
        self.began.append(time.perf_counter())
        return messages

    def aggregate_train(self, server_round, replies):
        replies = list(replies)
        if len(replies) != self.min_train_nodes or any(reply.has_error() for reply in replies):
            raise RuntimeError(
                f"{len(replies)} of {self.min_train_nodes} clients answered, or some answered with errors"
            )
        result = super().aggregate_train(server_round, replies)
        self.ended.append(time.perf_counter())
        return result


@app.main()
def serve(grid: Grid, context: Context) -> None:
    """Run all rounds."""
    config = context.run_config
    strategy = TimedFedAvg(int(config["clients"]))
    weights = np.random.default_rng(0).normal(0, 0.1, int(config["bytes"]) // 4).astype(np.float32)
    strategy.start(grid=grid, initial_arrays=ArrayRecord([weights]), num_rounds=int(config["rounds"]))
    seconds = [ended - began for began, ended in zip(strategy.began, strategy.ended, strict=True)]
    out = Path(str(config["out"]))
    out.with_suffix(".part").write_text(json.dumps({"seconds": seconds}))
    out.with_suffix(".part").rename(out)  # so that a reader never sees an incomplete file
