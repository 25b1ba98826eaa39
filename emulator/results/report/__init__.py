"""Write the report: one self-contained page that is drawn from a run record."""

from emulator.results.report.run_page import write_report

__all__ = ["write_report"]
