"""Choose the boards for a run, and the devices that each board runs."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from emulator.estimates.device_processes import device_ranges
from fedstrata.errors import ExperimentError
from fedstrata.experiment import Experiment
from fedstrata.process.quoting import quoted
from fedstrata.trust.authority import Authority
from fedstrata.trust.board_keys import public_key_of
from fedstrata.trust.names import device_names
from fedstrata.v1 import fleet_service_pb2 as pb


@dataclass(frozen=True)
class Share:
    """Hold a board, and the indexes of the devices that it runs."""

    board: pb.Board
    devices: range


def offer_of(
    offer_id: str, experiment: Experiment, gps: str, authority: Authority, boards: Iterable[Share]
) -> pb.OfferRunRequest:
    """Return the offer of a run to boards. The offer has a certificate for each board's key, signed by the run's
    authority. `gps` is the address at which boards reach the GPS.
    """
    request = pb.OfferRunRequest(offer_id=offer_id, experiment=experiment.to_yaml(), gps=gps, ca=authority.trusted())
    ids = experiment.device_ids()
    for share in boards:
        names = device_names(ids[index] for index in share.devices)
        request.loans.add(
            board=share.board.name,
            devices=f"{share.devices.start}-{share.devices.stop - 1}",
            certificate=authority.certified(names, public_key_of(share.board.public_key)),
        )
    return request


def shares_again(
    boards: Mapping[str, tuple[int, int]], fleet: pb.FetchFleetResponse, most_boards: int | None = None
) -> list[Share]:
    """Return the boards of a run that continues. These boards have the state of the run's devices, so they are returned
    even if they are offline. `boards` maps the name of each board to the range of its devices.

    Raises:
        ExperimentError: the fleet does not know a board, or `most_boards` allows fewer boards.
    """
    if most_boards is not None and most_boards < len(boards):
        raise ExperimentError(
            f"--boards {most_boards}: this run's devices have their state on {len(boards)} boards; leave --boards out"
        )
    known = {state.board.name: state.board for state in fleet.boards}
    if missing := sorted(set(boards) - set(known)):
        raise ExperimentError(
            f"this run's devices have their state on {quoted(*missing)}, which has never called this fleet; start its "
            "agent"
        )
    return [Share(known[name], range(*devices)) for name, devices in boards.items()]


def shares(experiment: Experiment, fleet: pb.FetchFleetResponse, most_boards: int | None = None) -> list[Share]:
    """Choose the boards of a run, and divide its devices among them. If each board has data of its own (a local
    partition), each device runs on the board with the device's name. Otherwise the devices are divided evenly among the
    boards that are online. If `most_boards` allows fewer boards, the boards that are least occupied by other runs are
    chosen.

    Raises:
        ExperimentError: a board is unknown, no board is online, or `most_boards` is smaller than the number of boards
            with data.
    """
    known = {state.board.name: state.board for state in fleet.boards}
    if experiment.partition.is_local:
        ids = experiment.device_ids()
        if missing := [name for name in ids if name not in known]:
            raise ExperimentError(
                f"partition.names: no board of the fleet is called {', '.join(missing[:5])}; give the names in the "
                f"boards' certificates. The fleet has {', '.join(sorted(known)[:5]) or 'no board yet'}"
            )
        if most_boards is not None and most_boards < len(ids):
            raise ExperimentError(
                f"--boards {most_boards}: the data of this run's devices are on {len(ids)} boards; leave --boards out"
            )
        return [Share(known[name], range(index, index + 1)) for index, name in enumerate(ids)]
    taken = Counter(name for offer in fleet.offers for name in offer.boards)
    here = [state.board for state in fleet.boards if state.is_here]
    if not here:
        raise ExperimentError("no board calls the fleet; start the boards' agents (python -m fleet.board)")
    here.sort(key=lambda board: (taken[board.name] / max(1, board.most_runs), board.name))
    chosen = here[: most_boards or len(here)]
    ranges = device_ranges(experiment.device_count, len(chosen))
    return [Share(board, part) for board, part in zip(chosen, ranges, strict=False)]
