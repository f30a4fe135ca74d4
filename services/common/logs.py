"""Log lines: one JSON object a line on standard output (operations 7 and 12.11).

Members: `level`, `message` (the event's name), `time`, the event's fields in the order given, `service`,
and the trace's ids when there are some. Errors' text stands in `error`. Never a token, a prompt, a tool's
input or output, or a value of an environment.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from collections.abc import MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final, TextIO, cast

import services.common.structlog_alone  # noqa: F401  (before structlog)

# isort: split
import structlog
from structlog.typing import FilteringBoundLogger

_LEVEL_NAMES: Final = {"warning": "warn", "exception": "error", "critical": "error"}

_THRESHOLDS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warn": logging.WARNING}

trace_context: ContextVar[str | None] = ContextVar("whippletree_traceparent", default=None)
"""The traceparent of the call that is being served; log lines carry its ids."""


def get_logger() -> FilteringBoundLogger:
    """The process's logger: `get_logger().info("grpc_serving", address=...)`."""
    return cast(FilteringBoundLogger, structlog.get_logger())


def configure_logging(service: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Sends every log line of the process, the standard library's warnings included, to `stream`.

    `level` is `debug`, `info` or `warn`. `stream` is standard output when None.
    """
    threshold = _THRESHOLDS.get(level, logging.INFO)
    structlog.configure(
        processors=[_Shape(service)],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=lambda *_: _Lines(stream or sys.stdout),
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler, _FromStandardLibrary):
            root.removeHandler(handler)
    root.addHandler(_FromStandardLibrary(logging.WARNING))


def error_text(error: BaseException) -> str:
    """How an exception is written into `error`: its type and text, on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


class _Shape:
    """Orders a line's members and renders them."""

    def __init__(self, service: str) -> None:
        self._service = service

    def __call__(self, logger: Any, method: str, event: MutableMapping[str, Any]) -> str:
        del logger
        line: dict[str, Any] = {
            "level": _LEVEL_NAMES.get(method, method),
            "message": event.pop("event", ""),
            "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z",
        }
        for name, value in event.items():
            line.setdefault(name, value)
        line.setdefault("service", self._service)
        parent = trace_context.get()
        if parent is not None:
            _, trace_id, span_id, *_ = [*parent.split("-"), "", ""]
            line.setdefault("trace_id", trace_id)
            line.setdefault("span_id", span_id)
        return json.dumps(line, ensure_ascii=False, separators=(",", ":"), default=str)


class _Lines:
    """Writes lines; a reader that went away never stops the process."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def msg(self, line: str) -> None:
        """Writes one line at once."""
        with contextlib.suppress(OSError, ValueError):
            try:
                self._stream.write(line + "\n")
            except UnicodeEncodeError:
                # A lone surrogate, or a stream that isn't UTF-8: JSON's own escapes fit every stream.
                self._stream.write(json.dumps(json.loads(line), separators=(",", ":")) + "\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = log = msg


class _FromStandardLibrary(logging.Handler):
    """Lets warnings of libraries (asyncio, grpc) appear in the same shape."""

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one record."""
        fields: dict[str, Any] = {"logger": record.name, "error": record.getMessage()}
        if record.exc_info and record.exc_info[1] is not None:
            fields["error"] += f" ({error_text(record.exc_info[1])})"
        logger = get_logger()
        if record.levelno >= logging.ERROR:
            logger.error("library_message", **fields)
        else:
            logger.warning("library_message", **fields)
