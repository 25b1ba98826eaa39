"""The rhythms by the key `training.rounds`."""

from fedstrata.experiment.sections import BufferedSettings, RoundKind, SynchronousSettings, TimedSettings
from fedstrata.rhythms.base import Rhythm
from fedstrata.rhythms.buffered import Buffered
from fedstrata.rhythms.synchronous import Synchronous
from fedstrata.rhythms.timed import Timed


def make_rhythm(settings: RoundKind, children: int) -> Rhythm:
    """Return the rhythm of a parent with this many children."""
    match settings:
        case SynchronousSettings():
            return Synchronous()
        case TimedSettings():
            return Timed(settings)
        case BufferedSettings():
            return Buffered(settings.updates(children))
