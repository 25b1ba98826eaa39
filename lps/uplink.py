"""What an LPS hears from the GPS when it sends its part of a global round, or asks for a model."""

from fedstrata.errors import RunStoppedError
from fedstrata.rounds import ReceivedModel, RoundClient, Update
from fedstrata.v1 import rounds_pb2 as pb


def model_of(answer: object) -> ReceivedModel:
    """The model that was asked for. Raises RunStoppedError where the run is over."""
    if isinstance(answer, ReceivedModel):
        return answer
    raise RunStoppedError(getattr(answer, "reason", "") or "the GPS ended the run")


async def exchanged(uplink: RoundClient, update: Update) -> ReceivedModel:
    """Send an update, as often as the GPS wants it; gives what the next global round starts from.

    Raises:
        RunStoppedError: the run is over.
    """
    while isinstance(answer := await uplink.exchange(update), pb.SendAgain):
        pass
    return model_of(answer)
