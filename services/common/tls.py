"""TLS on the gRPC ports: which files, read again when they change, and who a client says it is.

operations 12.3 and 12.4. A Unix socket stays plain: its folder is closed to other users. Certificates are
renewed in place by most tools (cert-manager, a mesh's agent, `whippletree dev-ca`), one file after another, so
a set of files counts only once key and certificate belong together; until then the last good one goes on.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc

from services.common.logs import get_logger
from services.common.settings import Environment

MODE: Final = "NYLORUN_GRPC_TLS"
CERT: Final = "NYLORUN_GRPC_CERT_FILE"
KEY: Final = "NYLORUN_GRPC_KEY_FILE"
CA: Final = "NYLORUN_GRPC_CA_FILE"
CLIENTS: Final = "NYLORUN_GRPC_ALLOWED_CLIENTS"

SETTINGS: Final = (MODE, CERT, KEY, CA, CLIENTS)

MAX_FILE_BYTES: Final = 1024 * 1024
_NAMES_IN_CONTEXT: Final = ("x509_subject_alternative_name", "peer_spiffe_id")

Stamp = tuple[tuple[int, int, int], ...]


class CertificatesUnusable(Exception):
    """The files can't be used; the text names the file and says why."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """How a port is served, or dialled, with TLS.

    `mutual` asks clients for a certificate of the CA. `allowed_clients` are names (DNS names, addresses, URIs
    such as SPIFFE ids) of which a client's certificate must carry one; empty allows every one of the CA.
    """

    mutual: bool
    cert_file: str | None = None
    key_file: str | None = None
    ca_file: str | None = None
    allowed_clients: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Pem:
    """The files' content."""

    cert: bytes | None
    key: bytes | None
    ca: bytes | None

    def __repr__(self) -> str:
        """Never the key."""
        return "Pem(...)"


def read_tls(env: Environment, side: Literal["server", "client"]) -> TlsSettings | None:
    """Reads the settings of one side and tries its files; None for `off`. Problems are noted in `env`."""
    mode = env.choice(MODE, ("off", "tls", "mtls"), "off")
    clients = tuple(name for part in (env.text(CLIENTS) or "").split(",") if (name := part.strip()))
    files = {name: env.text(name) for name in (CERT, KEY, CA)}
    if mode == "off":
        for name in (*(name for name, path in files.items() if path), *((CLIENTS,) if clients else ())):
            env.problem(f"{name} is set but {MODE} is off; set {MODE} to tls or mtls, or unset it.")
        return None
    mutual = mode == "mtls"
    needed = (CERT, KEY, *((CA,) if mutual else ())) if side == "server" or mutual else ()
    missing = [name for name in needed if files[name] is None]
    if missing:
        env.problem(f"{' and '.join(missing)} must be set with {MODE}={mode}.")
    if clients and not mutual:
        env.problem(f"{CLIENTS} needs {MODE}=mtls: without it clients show no certificate.")
    if side == "client" and not mutual:
        files[CERT] = files[KEY] = None
    settings = TlsSettings(mutual, files[CERT], files[KEY], files[CA], clients if side == "server" else ())
    if not missing:
        try:
            read_files(settings)
        except CertificatesUnusable as error:
            env.problem(str(error))
    return settings


def read_files(settings: TlsSettings) -> Pem:
    """The files' content. Raises CertificatesUnusable unless key and certificate belong together."""
    pem = Pem(_read(CERT, settings.cert_file), _read(KEY, settings.key_file), _read(CA, settings.ca_file))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if pem.cert is not None:
        try:
            context.load_cert_chain(settings.cert_file or "", settings.key_file, _no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise CertificatesUnusable(
                f"{CERT} and {KEY} are no certificate with its own key ({_reason(error)})."
            ) from None
    if pem.ca is not None:
        try:
            context.load_verify_locations(cadata=pem.ca.decode("ascii"))
        except (ssl.SSLError, UnicodeDecodeError) as error:
            raise CertificatesUnusable(f"{CA} holds no certificate ({_reason(error)}).") from None
    return pem


class CertificateFiles:
    """A set of files that may change at any time. `pem` is the last good content; safe in any thread."""

    def __init__(self, settings: TlsSettings) -> None:
        """Raises CertificatesUnusable."""
        self._settings = settings
        self._lock = threading.Lock()
        self._stamp = self._look()
        self._complained: Stamp | None = None
        self.pem = read_files(settings)

    def changed(self) -> bool:
        """Reads the files when they are others than last time; True when there is new content to use."""
        with self._lock:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            try:
                pem = read_files(self._settings)
            except CertificatesUnusable as error:
                # Said once per state of the files: the next change may be a moment away.
                if stamp != self._complained:
                    self._complained = stamp
                    get_logger().warning("grpc_certificates_unusable", error=str(error))
                return False
            self._stamp = stamp
            if pem == self.pem:
                return False
            self.pem = pem
        get_logger().info("grpc_certificates_read")
        return True

    def _look(self) -> Stamp:
        paths = (self._settings.cert_file, self._settings.key_file, self._settings.ca_file)
        return tuple(_stamp(path) for path in paths if path is not None)


def server_credentials(files: CertificateFiles, *, mutual: bool) -> grpc.ServerCredentials:
    """Credentials of a port: gRPC asks for the certificate anew before each handshake."""

    def configuration() -> Any:
        pem = files.pem
        return grpc.ssl_server_certificate_configuration(
            [(pem.key or b"", pem.cert or b"")], pem.ca if mutual else None
        )

    def newest() -> Any:
        return configuration() if files.changed() else None

    return grpc.dynamic_ssl_server_credentials(configuration(), newest, mutual)


def channel_credentials(pem: Pem) -> grpc.ChannelCredentials:
    """Credentials of a channel; gRPC's own roots where there is no CA."""
    return grpc.ssl_channel_credentials(pem.ca, pem.key, pem.cert)


def client_names(auth_context: Mapping[str, Sequence[bytes]]) -> frozenset[str]:
    """The names in a client's certificate, as gRPC's `auth_context` has them."""
    return frozenset(
        value.decode("utf-8", "replace") for name in _NAMES_IN_CONTEXT for value in auth_context.get(name, ())
    )


def _read(name: str, path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise CertificatesUnusable(f"{name} can't be read: {error.strerror or error}.") from None
    if len(content) > MAX_FILE_BYTES:
        raise CertificatesUnusable(f"{name} is larger than {MAX_FILE_BYTES} bytes.")
    return content


def _stamp(path: str) -> tuple[int, int, int]:
    try:
        found = Path(path).stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_mtime_ns, found.st_size, found.st_ino)


def _reason(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "strerror", None) or type(error).__name__)


def _no_password() -> str:
    # Without it OpenSSL would ask the terminal.
    return ""
