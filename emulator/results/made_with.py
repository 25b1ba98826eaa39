"""Tell by which software runs differ."""

from collections.abc import Sequence

from emulator.results.read_record import RunRecord


def software_apart(runs: Sequence[RunRecord]) -> dict[str, dict[str, list[RunRecord]]]:
    """Return the runs by value, for each version, platform, processor or commit that differs between them. A fact that
    some run does not tell, such as the torch of a tier without torch, is left out.
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
