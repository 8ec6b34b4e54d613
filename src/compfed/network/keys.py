"""Keys and TLS (X.509) certificates: the identities in a federation.

A site makes its own identity key (`node.key`) and sends its public half to the operator. The operator makes a certificate
authority, a certificate for the SuperLink, and a secret that only the operator's processes know. A private key never
travels.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import ipaddress
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as formats
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from compfed.errors import InputError

YEARS = 2
CA_NAME = "compfed federation CA"
LOCAL = ("127.0.0.1", "localhost")  # the operator's own processes reach the SuperLink under these names
SITE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
SECRET = "superlink.secret"
CURVE = ec.SECP384R1
PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey
Roster = Mapping[str, PublicKey]  # the sites by name, in order


def check_site_name(name: object, where: str) -> str:
    """The name of a site, if it is one: it becomes a file name, a line in a log and a word on a screen."""
    if not isinstance(name, str) or not SITE_NAME.fullmatch(name):
        rule = "A name has 1 to 63 characters: a-z, 0-9, '.', '_', '-', and begins with a letter or a digit."
        raise InputError(f"{where}: {name!r} is not a name for a site. {rule}")
    if name in ("ca", "server"):
        raise InputError(f"{where}: {name!r} is reserved for a file of the operator. Choose another name for the site.")
    return name


# --- identity keys of sites ---


def new_identity() -> PrivateKey:
    """A new identity key of a site."""
    return ec.generate_private_key(CURVE())


def write_identity(path: Path, key: PrivateKey) -> None:
    """Write a private key that only its owner can read."""
    write_new(
        path, key.private_bytes(formats.Encoding.PEM, formats.PrivateFormat.OpenSSH, formats.NoEncryption()), 0o600
    )


def read_identity(path: Path) -> PrivateKey:
    """The identity key of a site, from its file."""
    try:
        key = formats.load_ssh_private_key(path.read_bytes(), None)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}. `compfed site init` makes this key.") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        wrong = f"{path} is not a private key in OpenSSH's format without a password."
        raise InputError(f"{wrong} `compfed site init` makes one.") from None
    if not isinstance(key, PrivateKey) or not isinstance(key.curve, CURVE):
        raise InputError(f"{path}: the key must be an ECDSA key on the curve P-384. `compfed site init` makes one.")
    return key


def public_line(key: PublicKey) -> str:
    """A public key as one line of text."""
    return key.public_bytes(formats.Encoding.OpenSSH, formats.PublicFormat.OpenSSH).decode()


def parse_public_line(text: object, where: str) -> PublicKey:
    """The public key in a line that `public_line` wrote; a comment after it is ignored."""
    if "PRIVATE KEY" in str(text):
        raise InputError(f"{where}: this is a private key. It stays with its owner; give the public line.")
    try:
        key = formats.load_ssh_public_key(str(text).strip().encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, PublicKey) or not isinstance(key.curve, CURVE):
        way_out = "Paste the line that `compfed site init` printed there; it begins with ecdsa-sha2-nistp384."
        raise InputError(f"{where}: {str(text)[:60]!r} is not a site's public key. {way_out}")
    return key


def fingerprint(key: PublicKey) -> str:
    """A short hash of a public key, for people to compare by telephone; the same as `ssh-keygen -lf` prints."""
    blob = base64.b64decode(public_line(key).split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


# --- the operator's files ---


def make_keys(folder: Path, host: str) -> list[Path]:
    """Write ca.crt, ca.key, server.pem, server.key and the secret of the SuperLink into a new folder."""
    if folder.exists() and any(folder.iterdir()):
        wrong = f"{folder} has keys already; new ones would lock out sites that have the old ca.crt."
        raise InputError(f"{wrong} Move it away.")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    authority, server = new_identity(), new_identity()
    names = [_alternative(name) for name in dict.fromkeys((host, *LOCAL))]
    ca = _certificate(
        CA_NAME, authority, authority,
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_key_usage("key_cert_sign", "crl_sign"), True),  # Python 3.13 accepts no CA without it
    )  # fmt: skip
    certificate = _certificate(
        host[:64], server, authority,
        (x509.SubjectAlternativeName(names), False),
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_key_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False),
    )  # fmt: skip
    pkcs8 = formats.Encoding.PEM, formats.PrivateFormat.PKCS8, formats.NoEncryption()
    files = {
        "ca.crt": (ca, 0o644),
        "ca.key": (authority.private_bytes(*pkcs8), 0o600),
        "server.pem": (certificate, 0o644),
        "server.key": (server.private_bytes(*pkcs8), 0o600),
        SECRET: (secrets.token_bytes(32), 0o600),
    }
    for name, (data, mode) in files.items():
        write_new(folder / name, data, mode)
    return [folder / name for name in files]


def gate_token(secret: bytes) -> str:
    """The token that the operator shows at the gate of the SuperLink."""
    return hmac.new(secret, b"compfed/gate/1", hashlib.sha256).hexdigest()


def read_secret(folder: Path) -> bytes:
    """The secret of the SuperLink, which only the operator's processes know."""
    path = folder / SECRET
    try:
        secret = path.read_bytes()
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}. `compfed federation keys DIR` makes it.") from None
    if len(secret) < 32:
        raise InputError(f"{path} has {len(secret)} bytes; a secret has 32. Remove it and make new keys.")
    return secret


def _certificate(
    subject: str, key: PrivateKey, authority: PrivateKey, *extensions: tuple[x509.ExtensionType, bool]
) -> bytes:
    """A certificate for `key`, signed by the authority; extensions come with whether they are critical."""
    name, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in (subject, CA_NAME))
    now, public = datetime.datetime.now(datetime.UTC), key.public_key()
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(issuer).public_key(public)
    builder = builder.serial_number(x509.random_serial_number()).not_valid_before(now - datetime.timedelta(hours=1))
    builder = builder.not_valid_after(now + datetime.timedelta(days=365 * YEARS))
    identifiers = (
        (x509.SubjectKeyIdentifier.from_public_key(public), False),
        (x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), False),
    )
    for extension, critical in (*identifiers, *extensions):
        builder = builder.add_extension(extension, critical=critical)
    return builder.sign(authority, hashes.SHA384()).public_bytes(formats.Encoding.PEM)


def _key_usage(*allowed: str) -> x509.KeyUsage:
    names = (
        "digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement",
        "key_cert_sign", "crl_sign", "encipher_only", "decipher_only",
    )  # fmt: skip
    return x509.KeyUsage(**{name: name in allowed for name in names})


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def write_new(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Create a file with its mode; an existing file is never overwritten."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise InputError(f"{path} is there already. Move it away first.") from None
    with os.fdopen(handle, "wb") as file:
        os.fchmod(file.fileno(), mode)  # whatever the umask
        file.write(data)
