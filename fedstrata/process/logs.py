"""Logs on standard error: one JSON object per event with its fields. The events of level INFO describe the run."""

import io
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from fedstrata.process.json_text import json_text


class _JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": stamp, "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json_text(line, default=str)


def configure_logs(level: str = "INFO") -> None:
    """Send all logs of the process to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonLines())
    logging.basicConfig(level=level, handlers=[handler], force=True)
    root, grpc = logging.getLogger(), logging.getLogger("grpc")
    grpc.setLevel(max(logging.INFO, root.level))  # below INFO, gRPC writes several lines per call


def print_whatever_comes() -> None:
    """Make standard output and standard error print an escape for each character that they cannot encode. Without this,
    such a character would end the program.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


class EventLog:
    """Log the events of one part of a process, as in `log.info("round_closed", round=3, seconds=0.4)`."""

    def __init__(self, name: str, **fields: Any) -> None:
        self._logger = logging.getLogger(name)
        self._fields = fields

    def bind(self, **fields: Any) -> "EventLog":
        """Return a log that adds these fields to all its events."""
        return EventLog(self._logger.name, **(self._fields | fields))

    def debug(self, event: str, **fields: Any) -> None:
        self._logger.debug(event, extra={"fields": self._fields | fields})

    def info(self, event: str, **fields: Any) -> None:
        self._logger.info(event, extra={"fields": self._fields | fields})

    def warning(self, event: str, **fields: Any) -> None:
        self._logger.warning(event, extra={"fields": self._fields | fields})

    def error(self, event: str, **fields: Any) -> None:
        self._logger.error(event, extra={"fields": self._fields | fields})

    def exception(self, event: str, **fields: Any) -> None:
        """Log an event at the level ERROR, with the traceback of the current exception."""
        self._logger.exception(event, extra={"fields": self._fields | fields})
