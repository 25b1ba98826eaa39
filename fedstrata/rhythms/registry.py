"""The rhythms by the key `training.rounds`."""

from fedstrata.experiment.sections import BufferedSettings, TimedSettings
from fedstrata.methods.cohort import cohort_size
from fedstrata.rhythms.base import Rhythm
from fedstrata.rhythms.buffered import Buffered
from fedstrata.rhythms.timed import Timed


def make_rhythm(settings: TimedSettings | BufferedSettings, children: int) -> Rhythm:
    """Return the rhythm of a parent with this many children."""
    match settings:
        case TimedSettings():
            return Timed(settings)
        case BufferedSettings():
            return Buffered(cohort_size(children, settings.buffer))
