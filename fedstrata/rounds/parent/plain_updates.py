"""Updates without secure aggregation, at a parent. With secure aggregation, `MaskedUpdates` (`mask_keys.py`) takes
their place.
"""

from fedstrata.errors import PayloadError
from fedstrata.experiment import LinkSettings
from fedstrata.process.quoting import quoted
from fedstrata.rounds.parent.children import NO_LEAST, Enough
from fedstrata.rounds.parent.intake import Intake
from fedstrata.rounds.parent.open_round import Stage
from fedstrata.tensors.codec import AnyEncoding
from fedstrata.v1 import rounds_pb2 as pb


class PlainUpdates:
    """Accept updates without secure aggregation, so that the parent can read each update. Updates have the encoding
    that the experiment sets for their link. Children send no mask keys.
    """

    enough: Enough = NO_LEAST

    def encoding(self, link: LinkSettings) -> AnyEncoding:
        """Return the encoding of updates on a link."""
        return link.up

    def hear(self, request: pb.FetchModelRequest) -> None:
        """Raise PayloadError if a child sends a mask key. The parent's experiment file has no secure aggregation, so
        the child must have a different file.
        """
        if request.mask_key.ByteSize():
            raise PayloadError(
                f"{quoted(request.child_id)} masks its updates, but its parent runs without secure_aggregation; "
                "give all processes the same experiment file"
            )

    def check_size(self, children: int) -> None:
        """Raise RunStoppedError if a round cannot have this many children. Only secure aggregation has such limits."""

    def stages(self, intake: Intake, max_examples: int) -> list[Stage]:
        """Return the optional stages of a round. A child's weight in the sum is its number of examples. `max_examples`
        is the largest sum of these weights.
        """
        return []
