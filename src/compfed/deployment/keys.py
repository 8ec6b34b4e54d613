"""`compfed federation keys`: a certificate authority, a certificate for the SuperLink, a key for every site."""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from compfed.errors import InputError

YEARS = 2
LOCAL = ("127.0.0.1", "localhost")  # for a SuperLink behind a proxy, which speaks to it on the same machine


def make_keys(folder: Path, host: str, sites: Sequence[str]) -> list[Path]:
    """ca.crt, ca.key, server.pem, server.key, and NAME.key with NAME.key.pub for every site."""
    if folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder} has keys already; new ones would lock out sites that have the old ones. Move it away."
        )
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "compfed federation CA")])
    ca = _certificate(issuer, authority, issuer, authority, [(x509.BasicConstraints(ca=True, path_length=0), True)])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    more = [
        (x509.SubjectAlternativeName([_alternative(name) for name in dict.fromkeys((host, *LOCAL))]), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    ]
    certificate = _certificate(subject, server, issuer, authority, more)
    public = {"ca.crt": ca.public_bytes(Encoding.PEM), "server.pem": certificate.public_bytes(Encoding.PEM)}
    secret = {"ca.key": _private(authority, PrivateFormat.PKCS8), "server.key": _private(server, PrivateFormat.PKCS8)}
    for name in sites:
        key = ec.generate_private_key(ec.SECP384R1())
        secret[f"{name}.key"] = _private(key, PrivateFormat.OpenSSH)
        public[f"{name}.key.pub"] = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    for name, data in (public | secret).items():
        _written(folder / name, data, 0o600 if name in secret else 0o644)
    return [folder / name for name in public | secret]


def _certificate(subject: x509.Name, key: Any, issuer: x509.Name, by: Any, extensions: Sequence[Any]) -> Any:
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(by.public_key()), critical=False)
    )
    for extension, critical in extensions:
        made = made.add_extension(extension, critical=critical)
    return made.sign(by, hashes.SHA384())


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Any, format: PrivateFormat) -> bytes:
    return key.private_bytes(Encoding.PEM, format, NoEncryption())


def _written(path: Path, data: bytes, mode: int) -> None:
    """Created with its mode: a secret is at no time readable by others."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
