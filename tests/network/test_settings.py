"""federation.toml, site.toml and keys: every mistake is named, and other tools read what is written."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import ssl
import stat
import subprocess
import threading
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

import compfed as cf
from compfed.federation import QUERIES
from compfed.federation.queries import LEAVES
from compfed.federation.site.disclosure import DisclosurePolicy
from compfed.network import keys
from compfed.network.settings import FederationSettings, admit, new_federation, parse_address, template
from compfed.network.site_settings import SiteSettings, disclosure_text, init

SITES = ("north", "south")


def line(name: str = "") -> str:
    """The public key of a new site, as `compfed site init` prints it."""
    return keys.public_line(keys.new_identity().public_key()) + (f" {name}" if name else "")


# --- federation.toml ---


@pytest.mark.parametrize(("written", "read"), [("true", True), ("false", False), ("5", 5)])
def test_an_evaluation_may_name_its_folds(written, read, tmp_path):
    path = new_federation(tmp_path / "f", SITES)
    path.write_text(path.read_text().replace("evaluate = true", f"evaluate = {written}", 1))
    found = FederationSettings.read(path).evaluate
    assert (found, type(found)) == (read, type(read))


@pytest.mark.parametrize("written", ["-3", '"cv"', "2.5"])
def test_folds_that_are_none_are_refused(written, tmp_path):
    path = new_federation(tmp_path / "f", SITES)
    path.write_text(path.read_text().replace("evaluate = true", f"evaluate = {written}", 1))
    with pytest.raises(cf.InputError, match="evaluate"):
        FederationSettings.read(path)


def test_a_new_federation_can_be_read_and_is_not_written_over(tmp_path):
    path = new_federation(tmp_path / "f", SITES, "fed.example.org:8443")
    settings = FederationSettings.read(tmp_path / "f")
    assert settings == FederationSettings.read(path)
    assert settings.names == SITES
    assert (settings.host, settings.listen, settings.dial) == ("fed.example.org", ("0.0.0.0", 8443), "127.0.0.1:8443")
    assert type(settings.new_estimator()).__name__ == "FederatedLogisticRegressionCV"
    assert tomllib.loads(path.read_text())["site"] == [{"name": name, "key": ""} for name in SITES]
    with pytest.raises(cf.InputError, match=r"federation\.toml is there already"):
        new_federation(tmp_path / "f", SITES)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_all_that_a_run_was_started_with_is_plain_and_has_no_private_key(tmp_path):
    new_federation(tmp_path, SITES)
    for name in SITES:
        admit(tmp_path, name, line())
    resolved = json.loads(json.dumps(FederationSettings.read(tmp_path).resolved(), default=str))
    assert resolved["parameters"]["cv"] == 5
    assert set(resolved["sites"]) == set(SITES)
    assert all(text.startswith("SHA256:") for text in resolved["sites"].values())
    assert resolved["retry"] == {"timeout": 120.0, "attempts": 20, "wait": 600.0, "pause": 1.0, "approval": 1209600.0}


GOOD = 'estimator = "FederatedLasso"\n[network]\nsuperlink = "h:1"\n[[site]]\nname = "a"\n'
WRONG: dict[str, tuple[str, str]] = {
    "toml": ("estimator = [", "is not TOML"),
    "not utf-8": ("\udcff", "is not TOML"),
    "top": (GOOD.replace("estimator", "estimater"), "'estimater' is not a setting. Did you mean 'estimator'?"),
    "table": ("[netwrk]\n", "'netwrk' is not a setting. Did you mean 'network'?"),
    "nothing near": ("colour = 1\n", "'colour' is not a setting. There are estimator, parameters, summary, evaluate, why, network"),
    "estimator": (GOOD.replace("FederatedLasso", "FederatedLaso"), "Did you mean 'FederatedLasso'?"),
    "no estimator": (GOOD.partition("\n")[2], "estimator = None must be text"),
    "class": (GOOD.replace("FederatedLasso", "Problem"), "'Problem' is not an estimator"),
    "network": (GOOD.replace("superlink", "superlik"), r"\[network\]: 'superlik' is not a setting. Did you mean 'superlink'"),
    "reason": ('why = 3\n' + GOOD, "why must be a sentence of at most 500 characters"),
    "no superlink": (GOOD.replace('superlink = "h:1"', ""), r"\[network\]: 'superlink' is missing"),
    "network is not a table": ('network = "h:1"\n', r"\[network\] must be a table with the keys superlink, listen, keys"),
    "port": (GOOD.replace("h:1", "h"), "superlink = 'h' must be HOST:PORT, such as fed.example.org:8443"),
    "listen": (GOOD.replace('"h:1"', '"h:1"\nlisten = "0.0.0.0"'), "listen = '0.0.0.0' must be HOST:PORT"),
    "keys": (GOOD.replace('"h:1"', '"h:1"\nkeys = 3'), "keys = 3 must be text"),
    "retry": (GOOD + "[retry]\ntimeot = 1\n", r"\[retry\]: 'timeot' is not a setting. Did you mean 'timeout'?"),
    "attempts": (GOOD + "[retry]\nattempts = 0\n", "attempts"),
    "half an attempt": (GOOD + "[retry]\nattempts = 1.5\n", "attempts"),
    "timeout": (GOOD + "[retry]\ntimeout = -1\n", "timeout"),
    "nan": (GOOD + "[retry]\nwait = nan\n", "wait"),
    "words": (GOOD + '[retry]\nwait = "long"\n', "wait"),
    "parameters": (GOOD + "[parameters]\nalpa = 1\n", r"\[parameters\]: 'alpa' is not a setting. Did you mean 'alpha'?"),
    "parameters is not a table": ("parameters = 3\n" + GOOD, r"\[parameters\] must be a table"),
    "no site": (GOOD.partition("[[site]]")[0], "there is no site. Every site has a block"),
    "site is not a list": ("site = 3\n" + GOOD.partition("[[site]]")[0], "there is no site"),
    "site": (GOOD + 'kye = "x"\n', r"\[\[site\]\]: 'kye' is not a setting. Did you mean 'key'?"),
    "key": (GOOD + "key = 3\n", "site 'a': key = 3 must be text"),
    "twice": (GOOD + '[[site]]\nname = "a"\n', "two sites are called 'a'"),
    "no name": (GOOD.replace('name = "a"', ""), "None is not a name for a site"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_in_a_federation_toml_are_named(mistake, tmp_path):
    text, message = WRONG[mistake]
    (tmp_path / "federation.toml").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(cf.InputError, match=message) as problem:
        FederationSettings.read(tmp_path)
    assert str(tmp_path) in str(problem.value)


def test_a_folder_without_settings_says_what_to_give(tmp_path):
    with pytest.raises(cf.InputError, match=r"No such file or directory. Give the folder of `compfed federation new"):
        FederationSettings.read(tmp_path)


BAD_NAMES = ("ca", "server", "", "a/b", "../../evil", "A", "a" * 64, ".a", "-a", "a b", "a\n", "ä", "a\x1b[2J", "a:b")


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_are_no_names_are_refused_everywhere(name, tmp_path):
    message = "reserved for a file of the operator" if name in ("ca", "server") else "is not a name for a site"
    with pytest.raises(cf.InputError, match=message):
        new_federation(tmp_path / "f", [name])
    with pytest.raises(cf.InputError, match=message):
        init(tmp_path / "s", name, "h:1")
    (tmp_path / "federation.toml").write_text(GOOD.replace('"a"', json.dumps(name)))
    with pytest.raises(cf.InputError, match=message) as problem:
        FederationSettings.read(tmp_path)
    assert "\x1b" not in str(problem.value)
    (tmp_path / "federation.toml").write_text(GOOD)
    with pytest.raises(cf.InputError, match=message):
        admit(tmp_path, name, line())
    assert {path.name for path in tmp_path.iterdir()} == {"federation.toml"}


@pytest.mark.parametrize("name", ["a", "9", "clinic-0", "a" * 63, "st.mary_2"])
def test_names_of_sites(name, tmp_path):
    new_federation(tmp_path, [name])
    assert FederationSettings.read(tmp_path).names == (name,)


def test_names_that_come_twice_are_refused(tmp_path):
    with pytest.raises(cf.InputError, match="every site needs a name of its own"):
        new_federation(tmp_path, ["a", "b", "a"])


@pytest.mark.parametrize(
    "address", ["h", "h:", ":8443", "h:0", "h:65536", "h:-1", "h:1a", "h:²", "h:٣", "h:" + "1" * 5000, "a b:1", "h:1\n",
                "http://h:1", "u@h:1", "h/x:1", 8443, None, ["h:1"]],
)  # fmt: skip
def test_addresses_without_a_host_or_a_port_are_refused(address):
    with pytest.raises(cf.InputError, match="must be HOST:PORT"):
        parse_address(address, "superlink")


def test_addresses():
    assert parse_address("fed.example.org:8443", "") == ("fed.example.org", 8443)
    assert parse_address("10.0.0.1:65535", "") == ("10.0.0.1", 65535)
    assert parse_address("[2001:db8::1]:8443", "") == ("2001:db8::1", 8443)


@pytest.mark.parametrize(
    ("listen", "dial"),
    [("0.0.0.0:8", "127.0.0.1:8"), ("[::]:8", "127.0.0.1:8"), ("localhost:8", "127.0.0.1:8"), ("127.0.1.1:8", "127.0.0.1:8"),
     ("10.1.2.3:8", "10.1.2.3:8"), ("[2001:db8::1]:8", "[2001:db8::1]:8")],
)  # fmt: skip
def test_the_operator_dials_its_own_machine(listen, dial, tmp_path):
    (tmp_path / "federation.toml").write_text(GOOD.replace('"h:1"', f'"h:1"\nlisten = "{listen}"'))
    assert FederationSettings.read(tmp_path).dial == dial


def test_a_federation_on_one_machine_listens_there_only(tmp_path):
    for address, listen in (("127.0.0.1:8443", "127.0.0.1"), ("localhost:8443", "127.0.0.1"), ("h:8443", "0.0.0.0")):
        (tmp_path / "federation.toml").write_text(GOOD.replace("h:1", address))
        assert FederationSettings.read(tmp_path).listen == (listen, 8443)


# --- admit ---


def test_admit_writes_the_key_into_the_block_of_the_site(tmp_path):
    path = new_federation(tmp_path, SITES)
    before = path.read_text()
    given = line("root@clinic")
    admit(tmp_path, "south", f"  {given}\n")
    blocks = tomllib.loads(path.read_text())["site"]
    assert blocks == [{"name": "north", "key": ""}, {"name": "south", "key": " ".join(given.split()[:2])}]
    assert path.read_text().replace(blocks[1]["key"], "") == before  # nothing else changed, comments included
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = line()
    admit(path, "south", other)  # a new key for a site that was set up again
    assert FederationSettings.read(tmp_path).public_keys["south"] == other


def test_admit_adds_a_block_for_a_new_site(tmp_path):
    path = new_federation(tmp_path, SITES)
    given = line()
    with pytest.raises(cf.InputError, match=r"there is no site 'west'; there are north, south. To add one, say --new"):
        admit(tmp_path, "west", given)
    admit(tmp_path, "west", given, new=True)
    assert tomllib.loads(path.read_text())["site"][2] == {"name": "west", "key": given}


def test_admit_keeps_comments(tmp_path):
    path = new_federation(tmp_path, SITES)
    path.write_text(
        path.read_text().replace('name = "north"\nkey = ""', 'name = "north" # our own\nkey = ""  # telephoned')
    )
    given = line()
    admit(tmp_path, "north", given)
    assert f'name = "north" # our own\nkey = "{given}"  # telephoned' in path.read_text()
    assert FederationSettings.read(tmp_path).public_keys["north"] == given


def test_admit_shows_what_to_write_into_a_block_of_another_form(tmp_path):
    path = new_federation(tmp_path, ["north"])
    path.write_text(path.read_text().replace('name = "north"\nkey = ""', "key = ''\nname = 'north'"))
    before, given = path.read_text(), line()
    with pytest.raises(
        cf.InputError, match=r"the block of site 'north' has another form. Write this into it"
    ) as problem:
        admit(tmp_path, "north", given)
    assert f'key = "{given}"' in str(problem.value)
    assert path.read_text() == before


def test_keys_that_were_exchanged_are_put_right(tmp_path):
    new_federation(tmp_path, SITES)
    first, second = line(), line()
    admit(tmp_path, "north", second)
    admit(tmp_path, "south", first)
    assert admit(tmp_path, "north", first)[1] == "south"  # which has none now
    assert FederationSettings.read(tmp_path).public_keys == {"north": first, "south": ""}
    assert admit(tmp_path, "south", second)[1] is None
    assert FederationSettings.read(tmp_path).public_keys == {"north": first, "south": second}


def test_the_line_of_another_site_is_refused(tmp_path):
    path = new_federation(tmp_path, SITES)
    before = path.read_text()
    with pytest.raises(cf.InputError, match="this line is from site 'north', not 'south'"):
        admit(tmp_path, "south", line() + " north")
    assert path.read_text() == before


def test_one_key_for_two_sites_is_refused(tmp_path):
    path = new_federation(tmp_path, SITES)
    given = line()
    admit(tmp_path, "north", given)
    before = path.read_text()
    path.write_text(before.replace('key = ""', f'key = "{given}"'))  # by hand
    with pytest.raises(cf.InputError, match="has the key of another site"):
        _ = FederationSettings.read(tmp_path).roster


def test_a_site_without_a_key_is_named_before_anything_starts(tmp_path):
    new_federation(tmp_path, SITES)
    admit(tmp_path, "north", line())
    with pytest.raises(
        cf.InputError, match=r"site 'south' has no key yet. .* compfed federation admit .* south 'LINE'"
    ):
        _ = FederationSettings.read(tmp_path).roster
    new_federation(tmp_path / "new", ("a", "b", "c"))
    admit(tmp_path / "new", "b", line())
    with pytest.raises(cf.InputError, match="sites 'a', 'c' have no key yet"):
        _ = FederationSettings.read(tmp_path / "new").roster


def _public(key: Any) -> str:
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


NOT_KEYS = {
    "words": "my key",
    "nothing": "",
    "another curve": _public(ec.generate_private_key(ec.SECP256R1())),
    "ed25519": _public(ed25519.Ed25519PrivateKey.generate()),
    "cut": line()[:-20],
    "quotes": '"; evil = "',
}


def test_a_private_key_is_refused_and_not_repeated(tmp_path):
    new_federation(tmp_path, SITES)
    secret = keys.new_identity().private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode()
    with pytest.raises(cf.InputError, match=r"this is a private key. It stays with its owner") as problem:
        admit(tmp_path, "north", secret)
    assert not any(part in str(problem.value) for part in secret.split("\n") if part)


@pytest.mark.parametrize("what", NOT_KEYS)
def test_a_line_that_is_no_key_of_a_site_is_refused(what, tmp_path):
    path = new_federation(tmp_path, SITES)
    before = path.read_text()
    with pytest.raises(
        cf.InputError, match=r"is not a site's public key. .* begins with ecdsa-sha2-nistp384"
    ) as problem:
        admit(tmp_path, "north", NOT_KEYS[what])
    assert len(str(problem.value)) < 400  # a private key pasted by mistake is not repeated
    assert path.read_text() == before


# --- the operator's keys ---


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    before = os.umask(0o022)
    try:
        folder = tmp_path_factory.mktemp("keys") / "keys"
        keys.make_keys(folder, "fed.example.org")
    finally:
        os.umask(before)
    return folder


def handshake(folder: Path, ca: Path, host: str) -> str:
    """The version of TLS that the standard library of Python agrees on with a server of these keys."""
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(folder / "server.pem", folder / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def accept() -> None:
            plain, _ = listening.accept()
            with plain, contextlib.suppress(OSError):  # a client that hung up
                server.wrap_socket(plain, server_side=True).close()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            context = ssl.create_default_context(cafile=str(ca))
            context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 has it by default
            with (
                socket.create_connection(listening.getsockname()) as plain,
                context.wrap_socket(plain, server_hostname=host) as wrapped,
            ):
                return str(wrapped.version())
        finally:
            thread.join()


@pytest.mark.parametrize("host", ["fed.example.org", "127.0.0.1", "localhost"])
def test_the_chain_is_accepted_by_a_tls_client(host, made):
    assert handshake(made, made / "ca.crt", host) == "TLSv1.3"


def test_another_host_and_another_ca_are_not_accepted(made, tmp_path):
    with pytest.raises(ssl.SSLCertVerificationError, match="Hostname mismatch"):
        handshake(made, made / "ca.crt", "evil.example.org")
    keys.make_keys(tmp_path / "other", "fed.example.org")
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(made, tmp_path / "other" / "ca.crt", "fed.example.org")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl is not installed")
def test_openssl_verifies_the_chain(made):
    command = ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-CAfile", str(made / "ca.crt")]
    done = subprocess.run([*command, str(made / "server.pem")], capture_output=True, text=True)
    assert done.stdout.strip().endswith("server.pem: OK"), done.stderr


def test_secrets_are_secret_and_the_certificate_is_for_a_server(made):
    ca, server = (x509.load_pem_x509_certificate((made / name).read_bytes()) for name in ("ca.crt", "server.pem"))
    server.verify_directly_issued_by(ca)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name.value) for name in names] == ["fed.example.org", "127.0.0.1", "localhost"]
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()}
    assert modes == {
        "ca.crt": 0o644, "ca.key": 0o600, "server.pem": 0o644, "server.key": 0o600, "superlink.secret": 0o600,
    }  # fmt: skip
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert len(keys.read_secret(made)) == 32


def test_keys_are_not_written_over(made):
    before = {path.name: path.read_bytes() for path in made.iterdir()}
    with pytest.raises(
        cf.InputError, match=r"has keys already; new ones would lock out sites that have the old ca\.crt"
    ):
        keys.make_keys(made, "127.0.0.1")
    assert {path.name: path.read_bytes() for path in made.iterdir()} == before


def test_a_secret_that_is_missing_or_short_is_named(tmp_path):
    with pytest.raises(cf.InputError, match=r"superlink\.secret: No such file or directory. `compfed federation keys"):
        keys.read_secret(tmp_path)
    (tmp_path / "superlink.secret").write_bytes(b"short")
    with pytest.raises(cf.InputError, match="has 5 bytes; a secret has 32"):
        keys.read_secret(tmp_path)


def test_missing_keys_are_named_before_anything_starts(tmp_path):
    new_federation(tmp_path, ["a"])
    with pytest.raises(cf.InputError, match=r"there is no .*ca\.crt. Run: compfed federation keys"):
        FederationSettings.read(tmp_path).check_keys()


# --- the key of a site ---


def test_a_site_makes_its_own_key(tmp_path):
    before = os.umask(0o022)
    try:
        paths, public, fingerprint = init(tmp_path / "north", "north", "fed.example.org:8443")
    finally:
        os.umask(before)
    assert [path.name for path in paths] == ["node.key", "node.key.pub", "site.toml"]
    assert [stat.S_IMODE(path.stat().st_mode) for path in paths] == [0o600, 0o644, 0o600]
    assert keys.public_line(keys.read_identity(paths[0]).public_key()) == public
    assert paths[1].read_text() == f"{public} north\n"
    assert fingerprint == keys.fingerprint(keys.parse_public_line(public, ""))
    settings = SiteSettings.read(paths[2])
    assert (settings.name, settings.superlink) == ("north", "fed.example.org:8443")
    with pytest.raises(cf.InputError, match=r"node\.key is there already. Move it away"):
        init(tmp_path / "north", "north", "fed.example.org:8443")
    with pytest.raises(cf.InputError, match="must be HOST:PORT"):
        init(tmp_path / "south", "south", "fed.example.org")
    assert not (tmp_path / "south").exists()


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
def test_ssh_keygen_reads_the_key_and_prints_the_same_fingerprint(tmp_path):
    paths, public, fingerprint = init(tmp_path, "north", "h:1")
    printed = subprocess.run(["ssh-keygen", "-lf", str(paths[1])], capture_output=True, text=True, check=True).stdout
    assert printed.split()[:3] == ["384", fingerprint, "north"]
    derived = subprocess.run(["ssh-keygen", "-yf", str(paths[0])], capture_output=True, text=True, check=True).stdout
    assert derived.split()[:2] == public.split()


def _private(key: Any, form: Any = PrivateFormat.OpenSSH) -> bytes:
    return key.private_bytes(Encoding.PEM, form, NoEncryption())


NOT_IDENTITIES: dict[str, tuple[bytes, str]] = {
    "pkcs8": (_private(keys.new_identity(), PrivateFormat.PKCS8), "is not a private key in OpenSSH's format"),
    "a public key": (line().encode(), "is not a private key in OpenSSH's format"),
    "empty": (b"", "is not a private key in OpenSSH's format"),
    "noise": (b"\x00\xff" * 50, "is not a private key in OpenSSH's format"),
    "curve": (_private(ec.generate_private_key(ec.SECP256R1())), "must be an ECDSA key on the curve P-384"),
    "ed25519": (_private(ed25519.Ed25519PrivateKey.generate()), "must be an ECDSA key on the curve P-384"),
}


@pytest.mark.parametrize("what", NOT_IDENTITIES)
def test_files_that_are_no_identity_key_are_refused(what, tmp_path):
    data, message = NOT_IDENTITIES[what]
    (tmp_path / "node.key").write_bytes(data)
    with pytest.raises(cf.InputError, match=message):
        keys.read_identity(tmp_path / "node.key")


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
@pytest.mark.parametrize("password", ["", "secret"])
def test_a_key_of_ssh_keygen_is_read_unless_it_has_a_password(password, tmp_path):
    path = tmp_path / "node.key"
    subprocess.run(["ssh-keygen", "-qt", "ecdsa", "-b", "384", "-N", password, "-f", str(path)], check=True)
    if password:
        with pytest.raises(cf.InputError, match="is not a private key in OpenSSH's format without a password"):
            keys.read_identity(path)
    else:
        assert keys.public_line(keys.read_identity(path).public_key()) in path.with_suffix(".key.pub").read_text()


def test_a_missing_identity_key_is_named(tmp_path):
    with pytest.raises(cf.InputError, match=r"No such file or directory. `compfed site init` makes this key"):
        keys.read_identity(tmp_path / "node.key")


# --- site.toml ---

NETWORK = '[network]\nsuperlink = "h:1"\nca = "ca.crt"\nkey = "node.key"\n'
SITE = 'name = "a"\ndata = "x.csv"\nlabel = "y"\n'
WRONG_SITE: dict[str, tuple[str, str]] = {
    "toml": ("name =", "is not TOML"),
    "missing": ('name = "a"\n' + NETWORK, "'data' is missing"),
    "setting": (SITE + "labels = 1\n" + NETWORK, "'labels' is not a setting. Did you mean 'label'?"),
    "network": (SITE + NETWORK + "superlnk = 1\n", r"\[network\]: 'superlnk' is not a setting. Did you mean 'superlink'"),
    "no network": (SITE, r"\[network\]: 'superlink' is missing"),
    "no ca": (SITE + NETWORK.replace('ca = "ca.crt"\n', ""), r"\[network\]: 'ca' is missing"),
    "address": (SITE + NETWORK.replace("h:1", "h"), "superlink = 'h' must be HOST:PORT"),
    "data": (SITE.replace('"x.csv"', "3") + NETWORK, "data = 3 must be text"),
    "label": (SITE.replace('"y"', "3") + NETWORK, "label = 3 must be text"),
    "labels twice": (SITE.replace('"y"', '["y", "y"]') + NETWORK, "names a column twice"),
    "features": (SITE + "features = 1\n" + NETWORK, "features = 1 must be a list of names"),
    "drop": (SITE + "drop = [1]\n" + NETWORK, r"drop = \[1\] must be a list of names"),
    "disclosure": (SITE + NETWORK + "[disclosure]\nmin_row = 5\n", r"\[disclosure\]: 'min_row' .* Did you mean 'min_rows'"),
    "disclosure is not a table": ("disclosure = 1\n" + SITE + NETWORK, r"\[disclosure\] must be a table"),
    "query": (SITE + NETWORK + '[disclosure]\nqueries = ["Hessian"]\n', "'Hessian' is not a query; the queries are .*Describe"),
    "least rows": (SITE + NETWORK + "[disclosure]\nmin_rows = -1\n", "min_rows"),
    "least rows in words": (SITE + NETWORK + '[disclosure]\nmin_rows = "many"\n', "min_rows"),
    "share": (SITE + NETWORK + "[disclosure]\nmax_hessian_share = -0.5\n", "max_hessian_share"),
    "share in words": (SITE + NETWORK + '[disclosure]\nmax_hessian_share = "all"\n', "max_hessian_share"),
    "share is no number": (SITE + NETWORK + "[disclosure]\nmax_hessian_share = nan\n", "max_hessian_share"),
    "no rows": (SITE + NETWORK + "[disclosure]\nmin_rows = 0\n", "min_rows"),
    "rows are a truth": (SITE + NETWORK + "[disclosure]\nmin_rows = true\n", "min_rows"),
    "level": (SITE + NETWORK + "[disclosure]\nmin_level_rows = 2.5\n", "min_level_rows"),
    "minibatches": (SITE + NETWORK + '[disclosure]\nallow_minibatches = "no"\n', "allow_minibatches"),
    "share by rule": (SITE + NETWORK + "[disclosure]\nshare_by_rule = -1\n", "share_by_rule"),
    "accepts in the policy": (SITE + NETWORK + "[disclosure]\naccepts = []\n", "'accepts' is not a setting"),
    "secure_sum": ('secure_sum = "yes"\n' + SITE + NETWORK, "secure_sum"),
    "secure sum": ("secure_sums = true\n" + SITE + NETWORK, "'secure_sums' is not a setting. Did you mean 'secure_sum'?"),
    "roster": (SITE + NETWORK + "roster = 3\n", "roster = 3 must be text"),
    "roster at the top": ('roster = "r.txt"\n' + SITE + NETWORK, "'roster' is not a setting"),
    "table": ("table = 3\n" + SITE + NETWORK, "table = 3 must be text"),
    "table is a path": ('table = "a/b"\n' + SITE + NETWORK, "table = 'a/b' is not a name for a table"),
    "table is hidden": ('table = ".a"\n' + SITE + NETWORK, "is not a name for a table"),
    "table has an escape": ('table = "a\\u001b[2J"\n' + SITE + NETWORK, "is not a name for a table"),
    "table is long": (f'table = "{"a" * 101}"\n' + SITE + NETWORK, "is not a name for a table"),
    "retention": ("retention_days = 0\n" + SITE + NETWORK, "retention_days"),
    "limits": (SITE + NETWORK + "[limits]\nmax_second = 5\n", r"\[limits\]: 'max_second' .* Did you mean 'max_seconds'"),
    "seconds": (SITE + NETWORK + "[limits]\nmax_seconds = 0\n", "max_seconds"),
    "bytes": (SITE + NETWORK + "[limits]\nmax_message_bytes = 0\n", "max_message_bytes"),
    "half a byte": (SITE + NETWORK + "[limits]\nmax_state_bytes = 1.5\n", "max_state_bytes"),
    "name": (SITE.replace('"a"', '"A"') + NETWORK, "'A' is not a name for a site"),
    "sep": ('sep = "::"\n' + SITE + NETWORK, "sep='::' must be one character"),
    "decimal": ("decimal = 1\n" + SITE + NETWORK, "decimal=1 must be"),
    "encoding": ('encoding = "klingon"\n' + SITE + NETWORK, "encoding='klingon' is not known"),
    "missing values": ("missing = [9]\n" + SITE + NETWORK, r"missing=\[9\] must list the cells"),
    "schema": ("schema = 3\n" + SITE + NETWORK, "schema = 3 must be text"),
    "neither label nor schema": (SITE.replace('label = "y"\n', "") + NETWORK, "'label' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", WRONG_SITE)
def test_mistakes_in_a_site_toml_are_named(mistake, tmp_path):
    text, message = WRONG_SITE[mistake]
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(cf.InputError, match=message) as problem:
        SiteSettings.read(tmp_path / "site.toml")
    assert str(tmp_path) in str(problem.value)


def test_settings_of_a_site_and_their_defaults(tmp_path):
    path = tmp_path / "site.toml"
    more = "[disclosure]\nmin_rows = 50\n[limits]\nmax_seconds = 60\nmax_message_bytes = 1000\nmax_models = 7\n"
    path.write_text(SITE + NETWORK + more)
    settings = SiteSettings.read(path)
    assert (settings.data, settings.state, settings.key) == (
        tmp_path / "x.csv",
        tmp_path / "state",
        tmp_path / "node.key",
    )
    assert (settings.disclosure.min_rows, settings.budget.max_seconds) == (50, 60)
    assert (settings.limits.max_message_bytes, settings.limits.max_models) == (1000, 7)
    with pytest.raises(cf.InputError, match=r"ca = 'ca\.crt' is not there. The operator sends ca\.crt"):
        settings.check_files()
    (tmp_path / "ca.crt").touch()
    with pytest.raises(cf.InputError, match=r"key = 'node\.key' is not there. `compfed site init` makes it"):
        settings.check_files()


def test_a_site_is_safe_unless_its_settings_say_otherwise(tmp_path):
    path = tmp_path / "site.toml"
    for text in (SITE + NETWORK, template("site").format(name="a", superlink="h:1").replace("rows.csv", "x.csv")):
        path.write_text(text)
        settings = SiteSettings.read(path)
        assert settings.disclosure == DisclosurePolicy()
        assert (settings.secure_sum, settings.roster, settings.table) == (True, tmp_path / "roster.txt", "x")
        assert settings.retention_days is None
    rules = "min_rows = 20\nmin_level_rows = 5\nmax_hessian_share = 0.3\nallow_minibatches = true\nmax_share = 7.0\n"
    path.write_text(
        'accepts = ["m:C"]\nsecure_sum = false\ntable = "heart 2024"\nretention_days = 30\n' + SITE + NETWORK
        + f'roster = "all.txt"\n[disclosure]\n{rules}queries = ["HeldOut"]\n'
    )  # fmt: skip
    settings = SiteSettings.read(path)
    assert settings.disclosure == DisclosurePolicy(20, 5, 0.3, True, ("HeldOut",), 0.5, 7.0, ("m:C",))
    assert (settings.secure_sum, settings.roster, settings.table) == (False, tmp_path / "all.txt", "heart 2024")
    assert settings.retention_days == 30


def test_the_template_names_every_rule_with_its_default(tmp_path):
    """Without their comment signs, the rules of the template are the defaults, but for `queries`."""
    text = template("site").format(name="a", superlink="h:1")
    before, mark, rules = text.partition("[disclosure]")
    rules, _, after = rules.partition("[limits]")
    (tmp_path / "site.toml").write_text(
        before + mark + re.sub(r"^# ", "", rules, flags=re.MULTILINE) + "[limits]" + after
    )
    settings = SiteSettings.read(tmp_path / "site.toml")
    assert settings.disclosure == DisclosurePolicy(queries=("HeldOut",))
    assert set(re.findall(r"^# (\w+) =", rules, re.MULTILINE)) == {f.name for f in fields(DisclosurePolicy)} - {
        "accepts"
    }


def test_a_site_reads_its_table_as_from_files_does(tmp_path):
    """Semicolons, decimal commas, words and blanks, with a schema: the arrays of `from_files` with the same schema."""
    rows = "y;sex;age\n" + "".join(f"{'ja' if k % 3 else 'nein'};{'fm'[k % 2]};{k},5\n" for k in range(30))
    (tmp_path / "x.csv").write_text(rows + "ja;leer;40,5\n")
    schema = cf.Schema(
        {"age": cf.NumericColumn(50.0), "sex": cf.CategoricalColumn(("f", "m"), missing="f")},
        cf.Label("y", ("nein", "ja")),
    )
    (tmp_path / "schema.toml").write_text(schema.to_toml())
    keys.write_identity(tmp_path / "node.key", ec.derive_private_key(3, ec.SECP384R1()))
    extra = 'schema = "schema.toml"\nsep = ";"\ndecimal = ","\nencoding = "utf-8"\nmissing = ["leer"]\n'
    (tmp_path / "site.toml").write_text(extra + SITE.replace('label = "y"\n', "") + NETWORK)
    site = SiteSettings.read(tmp_path / "site.toml").site()
    here = cf.data.from_files(tmp_path / "x.csv", schema=tmp_path / "schema.toml", missing=["leer"])
    np.testing.assert_array_equal(site.rows.features, here.features[0])
    np.testing.assert_array_equal(site.rows.labels, here.labels[0])
    assert (site.rows.columns, site.rows.file.schema) == (("age", "sex=m"), schema)
    assert site.rows.file.raw is not None
    # without a schema nobody knows what the other sites make of words
    (tmp_path / "site.toml").write_text(SITE + NETWORK)
    site = SiteSettings.read(tmp_path / "site.toml").site()
    assert re.match(r"cannot encode its table without a schema: .*words in column 'sex'", site.rows.file.not_encoded)


def test_the_secret_of_a_site_follows_from_its_key_alone(tmp_path):
    (tmp_path / "site.toml").write_text(SITE + NETWORK)
    settings = SiteSettings.read(tmp_path / "site.toml")
    with pytest.raises(cf.InputError, match="`compfed site init` makes this key"):
        settings.secret()
    keys.write_identity(tmp_path / "node.key", ec.derive_private_key(3, ec.SECP384R1()))
    # HMAC, RFC 2104, by hand: the key is the private number, 48 bytes, padded to the block of SHA-256
    key = (bytes(47) + b"\3").ljust(64, b"\0")
    inner = hashlib.sha256(bytes(k ^ 0x36 for k in key) + b"compfed/buckets/1").digest()
    assert settings.secret() == hashlib.sha256(bytes(k ^ 0x5C for k in key) + inner).digest()
    assert not settings.state.exists()


def written(folder: Path, names: tuple[str, ...], more: str = "") -> SiteSettings:
    """The settings of site "a" with a roster of these sites, in which it has its own key."""
    keys.write_identity(folder / "node.key", own := keys.new_identity())
    lines = [f"{name} {keys.public_line(own.public_key()) if name == 'a' else line()}\n" for name in names]
    (folder / "roster.txt").write_text("".join(lines))
    (folder / "site.toml").write_text(more + SITE + NETWORK)
    return SiteSettings.read(folder / "site.toml")


def test_a_site_reads_its_roster(tmp_path):
    settings = written(tmp_path, ("b", "a", "c"))
    assert list(settings.read_roster()) == ["b", "a", "c"]
    (tmp_path / "roster.txt").unlink()
    with pytest.raises(cf.InputError) as problem:
        settings.read_roster()
    for words in ("`compfed federation roster DIR`", "beside site.toml", "by telephone (`compfed site roster`)"):
        assert words in str(problem.value)


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_few_sites_take_part_only_without_masks(names, tmp_path):
    reason = r"there (is one|are 2): with two sites each would learn the other's totals by subtraction\. .* secure_sum = false"
    with pytest.raises(cf.InputError, match=reason):
        written(tmp_path, names).read_roster()
    (tmp_path / "node.key").unlink()
    assert tuple(written(tmp_path, names, "secure_sum = false\n").read_roster()) == names


def test_a_roster_without_this_site_is_refused(tmp_path):
    with pytest.raises(cf.InputError, match="does not have this site, 'a'; it has b, c, d"):
        written(tmp_path, ("b", "c", "d")).read_roster()
    (tmp_path / "node.key").unlink()
    settings = written(tmp_path, ("a", "b", "c"))
    (tmp_path / "node.key").unlink()
    keys.write_identity(tmp_path / "node.key", keys.new_identity())
    with pytest.raises(cf.InputError, match=r"Send node\.key\.pub to the operator"):
        settings.read_roster()


# --- what a site says about its rows ---


def said_by(path: Path, more: str = "", top: str = "") -> tuple[str, str]:
    """The first paragraph of the text, and the rest."""
    path.write_text(top + SITE + NETWORK + more)
    first, _, rest = disclosure_text(SiteSettings.read(path)).partition("\n\n")
    return first, rest


def test_a_site_says_in_one_paragraph_what_protects_its_rows(tmp_path):
    first, rest = said_by(tmp_path / "site.toml")
    assert "\n" not in first
    for words in ("x.csv stay here", "only totals over all sites of the roster", "unless all other sites work together",
                  "at least 10 rows", "rests on fewer than 10 rows is refused", "log.jsonl before it leaves",
                  "No code of others runs here"):  # fmt: skip
        assert words in first
    assert set(LEAVES) == {query.__name__ for query in QUERIES}
    assert all(f"  {query.__name__}: " in rest for query in QUERIES)
    assert "As totals over all sites the operator can ask for:" in rest
    assert "WEAKER" not in rest


def test_a_site_without_masks_does_not_claim_them(tmp_path):
    first, rest = said_by(tmp_path / "site.toml", top="secure_sum = false\n")
    assert "The operator sees this site's own sums over rows (secure_sum = false)." in first
    assert "only totals" not in first
    assert "As totals over all sites" not in rest


def test_a_site_says_its_own_rules(tmp_path):
    rules = 'queries = ["HeldOut"]\nmin_rows = 50\nmax_hessian_share = 0.2\n'
    first, rest = said_by(tmp_path / "site.toml", "[disclosure]\n" + rules)
    assert "at least 50 rows" in first
    assert "never HeldOut: refused" in rest
    assert "With fewer than 50 rows: nothing at all." in rest
    assert "at most 0.2 x rows" in rest
    assert "WEAKER" not in rest
    first, rest = said_by(tmp_path / "site.toml", "[disclosure]\nmin_rows = 1\nallow_minibatches = true\n")
    assert "may have single rows (min_rows = 1)" in first
    assert "secret of this site" not in first
    assert "WEAKER than the defaults" in rest
    assert "min_rows = 1 (default 10); allow_minibatches = 1 (default 0)." in rest
