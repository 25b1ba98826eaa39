"""The report: one self-contained page drawn from a run record."""

from emulator.report.page import write_report

__all__ = ["write_report"]
