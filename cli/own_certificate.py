"""A channel to a service on this machine with the certificate of that very service, for its health check.

The check runs where the service runs and has its files. It asks for one of the names in the certificate, as
the address it dials is the loopback one, which a certificate need not hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import services.common.grpc_env  # noqa: F401  (before grpc)

# isort: split
import grpc
from cryptography import x509

from services.common.tls import CA, CERT, KEY


class OwnCertificateUnusable(Exception):
    """The files of this process can't be used; the text may be shown."""


def own_channel(target: str, environ: Mapping[str, str], *, mutual: bool) -> grpc.Channel:
    """A blocking channel. Raises OwnCertificateUnusable."""
    cert, key, ca = (_read(environ.get(name, "").strip()) for name in (CERT, KEY, CA))
    if cert is None:
        raise OwnCertificateUnusable(f"{CERT} is not set.")
    credentials = grpc.ssl_channel_credentials(ca or cert, *((key, cert) if mutual else (None, None)))
    options = [("grpc.ssl_target_name_override", _name_in(cert)), ("grpc.enable_http_proxy", 0)]
    return grpc.secure_channel(target, credentials, options=options)


def _read(path: str) -> bytes | None:
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise OwnCertificateUnusable(f"{path} can't be read: {error.strerror or error}.") from error


def _name_in(cert: bytes) -> str:
    """A host name or an address that the certificate is for."""
    try:
        names = x509.load_pem_x509_certificate(cert).extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        )
    except (ValueError, x509.ExtensionNotFound) as error:
        raise OwnCertificateUnusable(f"The certificate in {CERT} names no host.") from error
    hosts = names.value.get_values_for_type(x509.DNSName)
    addresses = [str(address) for address in names.value.get_values_for_type(x509.IPAddress)]
    found = [name for name in (*hosts, *addresses) if "*" not in name]
    if not found:
        raise OwnCertificateUnusable(f"The certificate in {CERT} names no host.")
    return found[0]
