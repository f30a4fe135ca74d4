"""What every process does once its settings are read and before it starts anything (operations 12.4)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from services.common.logs import configure_logging
from services.common.metrics import configure_metrics
from services.common.secrets import forget_secrets, set_not_dumpable
from services.common.telemetry import Telemetry, configure_telemetry, use


def prepare_process(
    name: str, environ: Mapping[str, str], *, log_level: str, secrets: Iterable[str], traced_as: str
) -> Telemetry:
    """Begins to log under `name`, closes this process's memory and environment to others, and takes
    `secrets` out of what children inherit. Sets up metrics, and returns the traces that the
    environment asks for.
    """
    configure_logging(name, log_level)
    set_not_dumpable()
    # Exporters read headers with credentials from the environment, so before it is cleaned.
    telemetry = configure_telemetry(environ, traced_as)
    use(telemetry)
    configure_metrics(environ, traced_as)
    forget_secrets(secrets)
    return telemetry
