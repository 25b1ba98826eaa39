"""`python -m lps`: run one local parameter server (LPS)."""

import argparse
import asyncio
import os
import re
from pathlib import Path

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import load_experiment
from fedstrata.links.tier_links import upload_wait
from fedstrata.process.address import numbered_address
from fedstrata.process.http import StatusServer
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.process import (
    Arguments,
    first_of,
    folder,
    run_process,
    say_listening,
    service_arguments,
    spare_what_is_loaded,
)
from fedstrata.rpc.server import RpcServer
from fedstrata.store import claim
from fedstrata.store.own_code import check_code
from fedstrata.trust.names import Name
from fedstrata.trust.security import security_of, with_tls_options
from fedstrata.v1.lps_service_pb2_grpc import add_LpsServiceServicer_to_server
from lps.agent import LpsAgent
from lps.servicer import LpsServicer

SERVICE = "fedstrata.v1.LpsService"


def options_of_process() -> Arguments:
    """Return the command-line options of an LPS."""
    description = "A local parameter server (LPS) aggregates the updates of its devices."
    arguments = with_tls_options(service_arguments("lps", description))
    arguments.option("gps", "Connect to the GPS at this host:port.", required=True)
    arguments.option(
        "lps-id", "Take this name: lps-0, lps-1, … By default the number at the end of FEDSTRATA_POD_NAME decides."
    )
    arguments.option("listen", "Serve devices at this host:port.", default="127.0.0.1:0")
    arguments.option(
        "advertise",
        "Tell devices this host:port. host:port+ adds the LPS's number to the port. Default: the address of --listen.",
    )
    arguments.option("state", "Keep the LPS's state in this folder.", required=True)
    arguments.option("arrivals", "Repeat the asynchronous rounds in this contributions.csv of an earlier run.")
    return arguments


def lps_id(options: argparse.Namespace) -> str:
    """Return the LPS's id: the id in the options or, without one, `lps-N` for number N of the pod. Raises
    ExperimentError if both the id and the pod's number are missing.
    """
    if options.lps_id:
        return str(options.lps_id)
    ordinal = re.search(r"-(\d+)$", os.environ.get("FEDSTRATA_POD_NAME", ""))
    if not ordinal:
        raise ExperimentError(
            "the LPS has no name; give --lps-id, or set FEDSTRATA_POD_NAME to a pod's name with a number, such as lps-0"
        )
    return f"lps-{ordinal[1]}"


def number_of(name: str) -> int:
    """Return the number at the end of an LPS's id: 2 for lps-2. For an id without a number, return 0."""
    ordinal = re.search(r"\d+$", name)
    return int(ordinal[0]) if ordinal else 0


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Serve devices until the end of the run, and then wait for a stop signal. Return the exit code, or None if the
    signal comes before the end of the run.
    """
    experiment = load_experiment(Path(options.experiment))
    check_code(experiment)
    metrics = ProcessMetrics("lps")
    name = lps_id(options)
    advertised = numbered_address(options.advertise, number_of(name)) if options.advertise else ""
    security = security_of(options, Name("lps", name))
    log = EventLog("lps", lps_id=name)
    state = folder(options.state)
    claim(state)
    metrics.state(state)
    security.measured_by(metrics)
    agent = LpsAgent(
        experiment,
        lps_id=name,
        gps=options.gps,
        state=state,
        metrics=metrics,
        log=log,
        security=security,
        arrivals=Path(options.arrivals) if options.arrivals else None,
    )
    uploads = upload_wait(experiment, agent.model_bytes)
    server = RpcServer(
        metrics.links,
        payload_bytes=agent.model_bytes,
        children=experiment.device_count,
        security=security,
        membership=agent,
        uploads=uploads,
        refused=metrics.refused,
    )
    servicer = LpsServicer(agent.handlers, agent.knows_clusters, uploads, agent.held_s)
    server.add(add_LpsServiceServicer_to_server, servicer, SERVICE)
    names = options.http_names.split(",")
    with StatusServer(
        options.http, metrics.registry, lambda: server.is_ready and agent.has_its_models, names=names
    ) as status:
        await server.start(options.listen)
        spare_what_is_loaded()
        say_listening(grpc=server.address, http=status.address)

        async def work() -> int:
            await agent.register(advertised or server.address)
            await server.set_ready()
            await agent.run()
            return 0

        code = await first_of(stop, work())
        if code is not None:
            await stop.wait()
        await server.stop()
        await agent.close()
        log.info("stopped", bytes=[[*vars(key).values(), n] for key, n in metrics.links.snapshot().items()])
    return code


if __name__ == "__main__":
    run_process(options_of_process().parse_args(), main, tier="lps")
