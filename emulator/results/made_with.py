"""Find the differences between the software of several runs."""

from collections.abc import Sequence

from emulator.results.read_record import RunRecord


def software_apart(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[RunRecord]]]:
    """Return the versions, platforms, processors and commits that differ between runs. Each name is mapped to its
    values, and each value to the runs with this value. A name is left out if a run has no value for this name.
    """
    facts = [run.summary.made_by.facts() if run.summary.made_by else {} for run in runs]
    found = dict[str, dict[str, list[RunRecord]]]()
    for name in dict.fromkeys(name for each in facts for name in each):
        if all(name in each for each in facts):
            by_value = dict[str, list[RunRecord]]()
            for run, each in zip(runs, facts, strict=True):
                by_value.setdefault(" and ".join(each[name]), []).append(run)
            if len(by_value) > 1:
                found[name] = by_value
    return found
