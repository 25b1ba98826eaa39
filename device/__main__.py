"""`python -m device`: one or more devices in a process."""

import gc
import os

if __name__ == "__main__":
    gc.disable()  # until spare_what_is_loaded: torch loads an eighth faster

# Arithmetic runs on one thread, so that no result depends on the number of cores. Libraries read these variables when
# they are loaded. `scrub_environment` has deleted other variables that concern threads.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

import argparse
import asyncio
import secrets
from pathlib import Path

from device.agent import DeviceAgent
from device.channels import Channels
from device.compute_thread import LULL_S, SHORT_LULL_S, ComputeThread
from device.identity import device_indexes
from device.masking import shields
from device.stacked.training import Stacked
from device.training import OneByOne, limit_threads
from device.trial import try_all
from device.work import DeviceProcess, noise_of
from fedstrata.clock.clocks import clock_of
from fedstrata.datasets import load_dataset
from fedstrata.errors import ExcludedError, FedstrataError, NotAllowedError, PayloadError, RunStoppedError
from fedstrata.experiment import Experiment
from fedstrata.experiment_file import load_experiment
from fedstrata.methods import make_method
from fedstrata.partitions import check_partition
from fedstrata.process.heap import keep_for_training
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
from fedstrata.processors import started, with_memory
from fedstrata.store.own_code import check_code
from fedstrata.streams.architectures import Architectures
from fedstrata.tasks import make_task
from fedstrata.trust.names import Name
from fedstrata.trust.security import security_of, with_tls_options

log = EventLog("device")


def options_of_process() -> Arguments:
    """Return the options of a device process."""
    arguments = with_tls_options(service_arguments("device", "Devices hold data, and train when their LPS asks."))
    arguments.option("gps", "Connect to the GPS at this host:port.", required=True)
    arguments.option("devices", "Run the devices of these indexes, for instance 0-4,7.")
    arguments.option("device-name", "Run the one device with this name of partition.names.")
    arguments.option(
        "state", "Keep the devices' personal state in this folder; without a folder it ends with the process."
    )
    arguments.option(
        "processor-share",
        "Use at most this share of the processor's own memory, from 0 to 1.",
        default="1",
        read=_share,
    )
    arguments.add_argument("--stay", action="store_true", help="Stay idle and ready after the run has ended or failed.")
    return arguments


def _share(text: str) -> str:
    """Return a text that is a share of the processor's memory. Raises ArgumentTypeError for any other text."""
    try:
        is_share = 0 < float(text) <= 1
    except ValueError:
        is_share = False
    if not is_share:
        raise argparse.ArgumentTypeError(f"{text!r} is no share of a memory; give a number above 0, and at most 1")
    return text


def load(
    experiment: Experiment, channels: Channels, metrics: ProcessMetrics, state: Path | None, share: float = 1.0
) -> DeviceProcess:
    """Return everything that the devices of this process share, including their data. The process uses at most a
    share of the processor's memory.

    Raises:
        FedstrataError: the data, the user's own code or the options do not fit the experiment. No device of this
            process becomes ready.
    """
    limit_threads()
    keep_for_training()
    dataset = load_dataset(experiment.data, experiment.seed)
    check_partition(experiment, dataset)  # before readiness: a device without its data is never ready
    method = make_method(experiment)
    architectures = Architectures(experiment, method, started(experiment, share))
    task = make_task(experiment)
    with with_memory(experiment, architectures.processor, "the first try of a model"):
        try_all(experiment, architectures, dataset, task)  # own code should fail at the start
    metrics.links.questions = frozenset(question.name for question in method.questions())
    if experiment.privacy is not None:
        noise_of(experiment, "", state)  # a device that cannot seal its noise is never ready
    return DeviceProcess(
        experiment=experiment,
        dataset=dataset,
        architectures=architectures,
        method=method,
        compute_thread=ComputeThread(
            Stacked() if architectures.processor.may_stack else OneByOne(),
            LULL_S if experiment.training.rounds.asynchronous is None else SHORT_LULL_S,
        ),
        channels=channels,
        task=task,
        metrics=metrics,
        process_id=secrets.token_hex(8),
        pod_name=os.environ.get("FEDSTRATA_POD_NAME", ""),
        state=state,
        clock=clock_of(experiment).device(),
        shield_of=shields(experiment, channels.security, state),
    )


async def run_devices(host: DeviceProcess, indexes: list[int]) -> int:
    """Run all devices of the process, and return the exit code 0. If a parent refuses one device, the other devices
    continue.

    Raises:
        RunStoppedError: the run has stopped before its end. The error is raised when all devices have ended.
        NotAllowedError: no device of the process may take part.
        ResourceError: the processor has no memory left for a device.
    """

    async def one(index: int) -> FedstrataError | None:
        agent = DeviceAgent(host, index)
        try:
            with with_memory(host.experiment, host.architectures.processor, agent.device_id):
                await agent.run()
        except (PayloadError, ExcludedError, NotAllowedError, RunStoppedError) as error:  # from GPS or LPS
            log.warning("device_stopped", device=agent.device_id, reason=str(error))
            return error
        return None

    ends = await asyncio.gather(*(one(index) for index in indexes))
    stopped: FedstrataError | None = next((error for error in ends if isinstance(error, RunStoppedError)), None)
    if stopped is None and ends and all(isinstance(error, NotAllowedError) for error in ends):
        stopped = ends[0]
    if stopped is not None:
        raise stopped
    return 0


async def main(options: argparse.Namespace, stop: asyncio.Event) -> int | None:
    """Run the devices until the end of the run, and return the exit code. If a stop signal comes before the end, return
    None.
    """
    experiment = load_experiment(Path(options.experiment))
    check_code(experiment)
    indexes = device_indexes(experiment, options.devices, options.device_name)
    ids = experiment.device_ids()
    names = [Name("device", ids[index]) for index in indexes]
    security = security_of(options, *names)
    metrics = ProcessMetrics("device")
    security.measured_by(metrics)
    folder = Path(options.state) if options.state else None
    if folder is not None:
        metrics.state(folder)
    state = {"ready": False}
    names = options.http_names.split(",")
    with StatusServer(options.http, metrics.registry, lambda: state["ready"], names=names) as status:
        channels = Channels(options.gps, metrics.links, security)
        host = await asyncio.to_thread(load, experiment, channels, metrics, folder, float(options.processor_share))
        spare_what_is_loaded()
        say_listening(http=status.address)
        state["ready"] = True
        log.info("serving", devices=len(indexes), gps=options.gps)

        async def work() -> int:
            await channels.until_gps_reached(log)
            try:
                return await run_devices(host, indexes)
            except RunStoppedError as error:
                if not options.stay:
                    raise
                log.warning("run_stopped", reason=str(error))
                return error.exit_code

        code = await first_of(stop, work())
        log.info("stopped", bytes=[[*vars(key).values(), n] for key, n in metrics.links.snapshot().items()])
        if options.stay and code is not None:
            await stop.wait()
        await channels.close()
    return code


if __name__ == "__main__":
    run_process(options_of_process().parse_args(), main, tier="device")
