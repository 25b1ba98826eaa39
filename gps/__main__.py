"""`python -m gps`: run the global parameter server (GPS)."""

import argparse
import asyncio
import os
from importlib import import_module
from pathlib import Path

from fedstrata.errors import ExperimentError
from fedstrata.experiment_file import load_experiment
from fedstrata.links.tier_links import upload_wait
from fedstrata.page import PageApp
from fedstrata.process.http import StatusServer
from fedstrata.process.logs import EventLog
from fedstrata.process.metrics import ProcessMetrics
from fedstrata.process.process import (
    Arguments,
    first_of,
    run_process,
    say_listening,
    service_arguments,
    spare_what_is_loaded,
)
from fedstrata.rpc.execution import telling
from fedstrata.rpc.server import RpcServer
from fedstrata.store import claim
from fedstrata.store.own_code import check_code
from fedstrata.trust.security import security_of, with_tls_options
from fedstrata.trust.tls_files import GPS
from fedstrata.v1.gps_service_pb2_grpc import add_GpsServiceServicer_to_server, add_RunServiceServicer_to_server
from gps.kubernetes.backend import Backend
from gps.kubernetes.reconcile import Reconciler
from gps.page_data import LivePage
from gps.phases import Phases
from gps.retry import state_for
from gps.run import Run
from gps.servicer import GpsServicer, RunServicer


def options_of_process() -> Arguments:
    """Return the command-line options of the GPS."""
    description = "The global parameter server (GPS) groups devices and averages shared layers."
    arguments = with_tls_options(service_arguments("gps", description))
    arguments.option("listen", "Serve devices and LPSs at this host:port.", default="127.0.0.1:0")
    arguments.option("state", "Keep the GPS's state and the run's record in this folder.", required=True)
    arguments.option("again", "Begin a failed run again. Each new word does so once.", default="")
    arguments.option("command", "Write this command into the record.", default="")
    arguments.option(
        "lps-backend",
        "kubernetes: scale the StatefulSet of LPSs. local: other programs start LPSs.",
        default="local",
    )
    return arguments


def make_backend(name: str, log: EventLog) -> Backend:
    """Return the backend `local` or `kubernetes`. For any other name, raise ExperimentError."""
    if name == "local":
        return Backend()
    if name == "kubernetes":
        from gps.kubernetes.kubernetes_backend import KubernetesApi

        after_s = os.environ.get("FEDSTRATA_RELEASE_AFTER_S")
        return Reconciler(KubernetesApi.from_environment(log), log, release_after_s=float(after_s) if after_s else None)
    raise ExperimentError(f"--lps-backend must be local or kubernetes, not {name!r}")


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Run the GPS, and serve the record of its run until a stop signal. Return the exit code, or None if the signal
    comes before the end of the run.
    """
    experiment = load_experiment(Path(options.experiment))
    check_code(experiment)
    security = security_of(options, GPS)
    metrics = ProcessMetrics("gps")
    metrics.run(
        experiment.run_id,
        experiment=experiment.name,
        method=experiment.method.name,
        global_rounds=experiment.training.global_rounds,
    )
    log = EventLog("gps")
    state = state_for(Path(options.state) / experiment.run_id, options.again)
    claim(state)
    metrics.state(state)
    security.measured_by(metrics)
    backend = make_backend(options.lps_backend, log)
    run = Run(experiment, state=state, metrics=metrics, backend=backend, log=log, security=security)
    run.journal.made_with.note_command(options.command)
    uploads = upload_wait(experiment, run.largest_payload_bytes)
    server = RpcServer(
        metrics.links,
        payload_bytes=run.largest_payload_bytes,
        children=experiment.device_count,
        security=security,
        membership=run.serving,
        uploads=uploads,
        refused=metrics.refused,
        more=telling(state),
    )
    server.add(add_GpsServiceServicer_to_server, GpsServicer(run, uploads), "fedstrata.v1.GpsService")
    server.add(add_RunServiceServicer_to_server, RunServicer(run), "fedstrata.v1.RunService")
    page = LivePage(run)
    names = options.http_names.split(",")
    with StatusServer(options.http, metrics.registry, lambda: server.is_ready, PageApp(page.feed), names) as status:
        await server.start(options.listen)
        spare_what_is_loaded()
        say_listening(grpc=server.address, http=status.address)
        await server.set_ready()
        log.info("serving", run_id=experiment.run_id, resumed=run.journal.is_resumed)
        if run.questions.asked:
            # loads what most methods group by, while devices still compute their answers
            asyncio.get_running_loop().run_in_executor(None, import_module, "scipy.cluster.hierarchy")

        async def work() -> int:
            await Phases(run).conduct()
            backend.release_pods()
            return 0

        code = await first_of(stop, work())
        if code is not None:
            await stop.wait()
        await page.close()
        await server.stop()
        log.info("stopped", bytes=[[*vars(key).values(), n] for key, n in metrics.links.snapshot().items()])
        run.journal.close()
    return code


if __name__ == "__main__":
    run_process(options_of_process().parse_args(), main, tier="gps")
