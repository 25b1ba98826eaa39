"""The calls of the GPS to its backend, which sets the number of LPSs, labels pods, and writes Events for operators."""

from gps.hosting.serving import Serving
from gps.journal.journal import Journal
from gps.kubernetes.backend import Backend, Standing


class BackendCalls:
    """Make the calls of a run to its backend. This class finds the LPSs of each pod, and does not report an exclusion
    or a state twice.
    """

    def __init__(self, backend: Backend, *, serving: Serving, journal: Journal) -> None:
        self._backend = backend
        self._serving = serving
        self._journal = journal
        self._shown: Standing | None = None

    @property
    def job(self) -> str:
        """The name of the Kubernetes Job that ends with the run. Outside Kubernetes the name is empty."""
        return self._backend.job

    def scale_lps(self, replicas: int) -> None:
        """Request that this number of LPSs run."""
        self._backend.scale_lps(replicas)

    def label_pods(self) -> None:
        """Label each pod that has devices with the LPSs that serve these devices now."""
        self._backend.label_pods(self._serving.pods())

    def show(self, standing: Standing) -> None:
        """Show the operator the state of the run, if it has changed."""
        if standing != self._shown:
            self._shown = standing
            self._backend.show(standing)

    def tell(self, reason: str, message: str, *, is_warning: bool = False) -> None:
        """Write an Event for the operator."""
        self._backend.record_event(reason, message, is_warning=is_warning)

    def tell_excluded(self, who: str, stage: str, reason: str) -> None:
        """Write an Event about an exclusion for the operator."""
        self.tell("Excluded", f"{who}, {stage}: {reason}", is_warning=True)

    def exclude(self, who: str, stage: str, reason: str) -> None:
        """Note an exclusion. If the exclusion is new, write an Event about it."""
        if self._journal.exclude(who, stage, reason):
            self.tell_excluded(who, stage, reason)
