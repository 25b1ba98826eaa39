"""The report: one self-contained page drawn from a run record."""

from emulator.results.report.page import write_report

__all__ = ["write_report"]
