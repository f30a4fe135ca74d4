"""`whippletree dev-ca`: a certificate authority for trying TLS out, and a certificate for each process.

For development and tests: the key of the authority lies beside the certificates. Production has cert-manager,
a mesh or an authority of its own. Running it again keeps the authority and renews the certificates, each file
by a rename, so that running processes take the new ones over.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_DAYS: Final = 3650
DEFAULT_DAYS: Final = 90
CLOCK_SKEW: Final = datetime.timedelta(minutes=5)

HOSTS: Final = {
    "gateway": ("harness",),
    "model-executor": ("harness-model", "model-executor"),
    "mcp-pool": ("harness-mcp", "mcp-pool"),
    "sandbox-manager": ("harness-sandbox", "sandbox-manager"),
}
"""The names of each process in the compose file, and its own."""
LOCAL: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority with its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def run_dev_ca(folder: Path, hosts: Sequence[str], days: int) -> int:
    """The exit code. Writes ca.pem, and NAME.pem with NAME.key for each process, into the folder."""
    try:
        write_all(folder, hosts, days)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        print(f"The folder {folder} can't be used for certificates: {reason}.", file=sys.stderr)
        return 1
    print(
        f"Certificates for {', '.join(HOSTS)} are in {folder}, good for {days} days; running this again renews "
        "them.\n"
        "Set for each process NYLORUN_GRPC_TLS=mtls, NYLORUN_GRPC_CA_FILE=ca.pem, NYLORUN_GRPC_CERT_FILE=NAME.pem "
        "and NYLORUN_GRPC_KEY_FILE=NAME.key,\n"
        f"and for the three services NYLORUN_GRPC_ALLOWED_CLIENTS={spiffe_id('gateway')}"
    )
    return 0


def spiffe_id(name: str) -> str:
    """The URI that stands for a process in its certificate."""
    return f"spiffe://whippletree/{name}"


def write_all(folder: Path, hosts: Sequence[str], days: int) -> None:
    """The files. Raises OSError, and ValueError for an authority that can't be read or a host that is none."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority = _authority(folder)
    for name, own in HOSTS.items():
        issue(authority, folder, name, (*own, *LOCAL, *hosts), days)


def issue(authority: Authority, folder: Path, name: str, hosts: Sequence[str], days: int) -> None:
    """One certificate and its key: `NAME.pem` (0644) and `NAME.key` (0600)."""
    key = ec.generate_private_key(ec.SECP256R1())
    names = [*(_general_name(host) for host in hosts), x509.UniformResourceIdentifier(spiffe_id(name))]
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if name != "gateway":
        # A service shows it as a server, and to itself as the client of its own health check.
        usages.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
    builder = _builder(name, key, days).issuer_name(authority.certificate.subject)
    certificate = (
        builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()), critical=False
        )
        .sign(authority.key, hashes.SHA256())
    )
    _write(folder / f"{name}.key", _key_bytes(key), 0o600)
    _write(folder / f"{name}.pem", certificate.public_bytes(serialization.Encoding.PEM), 0o644)


def _authority(folder: Path) -> Authority:
    cert_path, key_path = folder / "ca.pem", folder / "ca.key"
    if cert_path.exists() and key_path.exists():
        key = serialization.load_pem_private_key(key_path.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError("ca.key is not a key that this command made")
        return Authority(x509.load_pem_x509_certificate(cert_path.read_bytes()), key)
    key = ec.generate_private_key(ec.SECP256R1())
    name = "Whippletree development CA"
    builder = _builder(name, key, CA_DAYS)
    certificate = (
        builder.issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=False,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=True,
                crl_sign=True,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
        .sign(key, hashes.SHA256())
    )
    _write(key_path, _key_bytes(key), 0o600)
    _write(cert_path, certificate.public_bytes(serialization.Encoding.PEM), 0o644)
    return Authority(certificate, key)


def _builder(name: str, key: ec.EllipticCurvePrivateKey, days: int) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Writes beside the file and renames, so that nobody reads half of it."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    partial.replace(path)
