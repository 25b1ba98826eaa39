"""A model of a shared layer and a head, and its streams, for tests of what an LPS and the GPS do with them."""

from fedstrata.methods import Channel, Reach
from fedstrata.streams.streams import Streams
from fedstrata.tensors import Layout

MODEL = Layout.of({"base": (3,), "head": (2,)})
STREAMS = Streams(
    model=MODEL,
    channels=(
        Channel(name="shared", tensors=MODEL.select(["base"]), reach=Reach.EVERYWHERE),
        Channel(name="head", tensors=MODEL.select(["head"]), reach=Reach.CLUSTER),
    ),
    spans=True,
)
