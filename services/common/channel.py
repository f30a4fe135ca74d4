"""The client's end: one channel to one address, with the options of operations 12.8."""

from __future__ import annotations

from typing import Any, Final

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common.metadata import AUTHORIZATION, Metadata
from services.common.tls import Pem, channel_credentials

DEFAULT_MAX_MESSAGE_BYTES: Final = 65 * 1024 * 1024


def channel_options(max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES) -> list[tuple[str, int | str]]:
    """gRPC's options of a channel."""
    return [
        ("grpc.max_receive_message_length", max_message_bytes),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # What may be sent again is decided by the caller, never by the channel.
        ("grpc.enable_retries", 0),
        # With gRPC's defaults a restarted service stays out of reach for 7 s and more.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
        ("grpc.dns_min_time_between_resolutions_ms", 5_000),
        # Calls to services stay inside: no proxy of the environment.
        ("grpc.enable_http_proxy", 0),
        # Each channel has its own connection, so that a stuck one never holds another up.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def bearer(token: str | None) -> Metadata:
    """The metadata that opens a port: the first token of a comma list; empty without a token."""
    first = (token or "").partition(",")[0]
    return ((AUTHORIZATION, f"Bearer {first}"),) if first else ()


def open_channel(
    target: str,
    *,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    tls: Pem | None = None,
    server_name: str | None = None,
) -> grpc.aio.Channel:
    """A channel to one address (`host:port`, `ipv4:a:p`, `unix:/path`, `dns:///name:port`).

    With `tls`, the server must show a certificate for `server_name`, or for the target's host without one.
    A Unix socket is dialled without TLS.

    The bearer goes with each call (`bearer`), not with the channel: gRPC lets no credentials onto a
    connection without TLS, and client interceptors would cost each call a task.
    """
    options: list[tuple[str, Any]] = channel_options(max_message_bytes)
    if target.startswith("unix:"):
        options.append(("grpc.default_authority", "localhost"))
    elif tls is not None:
        if server_name is not None:
            # Targets are addresses by now; the certificate is one for the name they were found by.
            options.append(("grpc.ssl_target_name_override", server_name))
        return grpc.aio.secure_channel(target, channel_credentials(tls), options=options)
    return grpc.aio.insecure_channel(target, options=options)
