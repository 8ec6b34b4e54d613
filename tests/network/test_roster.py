"""The roster: one fingerprint over names and keys in order, and files that are no roster."""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr", reason="a federation across a network: pip install '.[flower]'")

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

import compfed as cf
from compfed.network import keys
from compfed.network.roster import LONGEST, check_member, read_roster, revealed, roster_fingerprint, roster_text

NAMES = ("north", "south", "west", "east")
# Fixed keys: private numbers 1, 2, ... on P-384. The public point of 1 is the generator of the curve.
KEYS = [ec.derive_private_key(k, ec.SECP384R1()) for k in (1, 2, 3, 4)]
ROSTER = {name: key.public_key() for name, key in zip(NAMES, KEYS, strict=True)}


def line_of(key: ec.EllipticCurvePrivateKey) -> str:
    """The line of a public key, written by hand: RFC 5656, an uncompressed point."""
    numbers = key.public_key().public_numbers()
    parts = b"ecdsa-sha2-nistp384", b"nistp384", b"\4" + numbers.x.to_bytes(48, "big") + numbers.y.to_bytes(48, "big")
    blob = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return f"ecdsa-sha2-nistp384 {base64.b64encode(blob).decode()}"


def file_by_hand(names=NAMES, private=KEYS) -> str:
    return "# compfed/roster/1\n" + "".join(f"{n} {line_of(k)}\n" for n, k in zip(names, private, strict=True))


@pytest.fixture
def path(tmp_path) -> Path:
    return tmp_path / "roster.txt"


def test_a_roster_is_read_as_it_was_written(path):
    path.write_text(file_by_hand())
    found = read_roster(path)
    assert list(found) == list(NAMES)
    assert [key.public_numbers() for key in found.values()] == [key.public_key().public_numbers() for key in KEYS]
    assert roster_text(ROSTER) == file_by_hand()


def test_the_fingerprint_is_the_sha256_of_the_file(path):
    path.write_text(file_by_hand())
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    said = roster_fingerprint(read_roster(path))
    assert said.replace(" ", "") == digest[:40]  # 160 bits
    assert [len(group) for group in said.split(" ")] == [5] * 8
    if shutil.which("sha256sum"):
        printed = subprocess.run(["sha256sum", str(path)], capture_output=True, text=True, check=True).stdout
        assert printed.startswith(said.replace(" ", ""))


def test_the_fingerprint_does_not_depend_on_the_layout_of_the_file(path):
    plain = file_by_hand()
    path.write_text("# sent on Monday\r\n\n" + plain.replace("\n", " a comment \r\n").replace("/1 a comment ", "/1"))
    assert roster_fingerprint(read_roster(path)) == roster_fingerprint(ROSTER)


def test_every_order_and_every_change_has_a_fingerprint_of_its_own():
    orders = [dict(items) for items in itertools.permutations(ROSTER.items())]
    exchanged = [dict(zip(NAMES, (ROSTER[n] for n in order), strict=True)) for order in itertools.permutations(NAMES)]
    some = [dict(itertools.islice(ROSTER.items(), m)) for m in (1, 2, 3)]
    renamed = [{"nort": ROSTER["north"]}, {"northh": ROSTER["north"]}, {"a": KEYS[3].public_key()}]
    made = [*orders, *exchanged[1:], *some, *renamed]
    assert len({roster_fingerprint(roster) for roster in made}) == len(made) == 24 + 23 + 3 + 3


def test_names_in_a_fingerprint_are_names():
    """A name with a line break could imitate two sites."""
    forged = f"north {line_of(KEYS[0])}\nsouth"
    with pytest.raises(cf.InputError, match="is not a name for a site"):
        roster_fingerprint({forged: KEYS[1].public_key()})


HEAD, *LINES = file_by_hand().splitlines()
OTHER_CURVE = ec.derive_private_key(5, ec.SECP256R1()).public_key()
OTHER_CURVE = OTHER_CURVE.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "has no site"),
    "comments": (b"# north\n\n", "has no site"),
    "twice": ("\n".join([*LINES, LINES[0]]).encode(), "line 5: site 'north' is there twice"),
    "one key": (f"north {line_of(KEYS[0])}\nsouth {line_of(KEYS[0])}\n".encode(),
                "line 2: site 'south' has the key of site 'north'"),
    "no key": (b"north\n", "line 1: '' is not a site's public key"),
    "no name": (line_of(KEYS[0]).encode(), "line 1: '.*' is not a site's public key"),
    "another curve": (f"north {OTHER_CURVE}\n".encode(), "is not a site's public key"),
    "cut": (LINES[0][:-9].encode(), "is not a site's public key"),
    "a private key": (b"north -----BEGIN OPENSSH PRIVATE KEY-----\n", "this is a private key"),
    "upper case": (LINES[0].capitalize().encode(), "line 1: 'North' is not a name for a site"),
    "escape": (b"\x1b[2Jnorth" + LINES[0][5:].encode(), "is not a name for a site"),
    "zero": (b"nor\0th" + LINES[0][5:].encode(), "is not a name for a site"),
    "a path": (b"../north" + LINES[0][5:].encode(), "is not a name for a site"),
    "vertical tab": (b"north\x0b" + LINES[0][5:].encode(), "is not a name for a site"),
    "a long name": (b"n" * 10_000 + LINES[0][5:].encode(), "is not a name for a site"),
    "not ascii": ("nörd".encode() + LINES[0][5:].encode(), "is not plain text"),
    "right to left": ("\u202enorth".encode() + LINES[0][5:].encode(), "is not plain text"),
    "noise": (bytes(range(256)), "is not plain text"),
    "huge": (b"#\n" * (LONGEST // 2) + b"#", f"has more than {LONGEST} bytes"),
    "reserved": (b"server" + LINES[0][5:].encode(), "is reserved"),
}  # fmt: skip


@pytest.mark.parametrize("what", HOSTILE)
def test_files_that_are_no_roster_are_named(what, path):
    data, message = HOSTILE[what]
    path.write_bytes(data)
    with pytest.raises(cf.InputError, match=message) as problem:
        read_roster(path)
    said = str(problem.value)
    assert str(path) in said
    assert len(said) < 600
    assert said.isprintable()


def test_a_file_without_end_is_not_read_to_its_end():
    with pytest.raises(cf.InputError, match=f"has more than {LONGEST} bytes"):
        read_roster(Path("/dev/zero"))


def test_a_roster_that_is_not_there(path):
    with pytest.raises(
        cf.InputError, match=r"roster\.txt: No such file or directory. Ask the operator for roster\.txt"
    ):
        read_roster(path)
    with pytest.raises(cf.InputError, match="Is a directory"):
        read_roster(path.parent)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read every file")
def test_a_roster_that_cannot_be_read(path):
    path.write_text(file_by_hand())
    path.chmod(0)
    with pytest.raises(cf.InputError, match="Permission denied"):
        read_roster(path)


def test_a_site_is_a_member_with_its_own_key(path):
    check_member(ROSTER, "north", KEYS[0].public_key(), path)
    with pytest.raises(cf.InputError, match="does not have this site, 'centre'; it has north, south, west, east"):
        check_member(ROSTER, "centre", KEYS[0].public_key(), path)
    with pytest.raises(cf.InputError, match=r"Send node\.key\.pub to the operator") as problem:
        check_member(ROSTER, "north", KEYS[1].public_key(), path)
    assert all(keys.fingerprint(key.public_key()) in str(problem.value) for key in KEYS[:2])


# --- whose totals follow from those of several rosters ---


def by_search(rosters: list[set[str]]) -> list[str]:
    """Sites that some combination with small whole coefficients, over a divisor, leaves alone."""
    names = sorted(set().union(*rosters))
    found = set()
    for weights in itertools.product(range(-3, 4), repeat=len(rosters)):
        left = {n: sum(w for w, roster in zip(weights, rosters, strict=True) if n in roster) for n in names}
        alone = [n for n, count in left.items() if count]
        if len(alone) == 1:
            found.add(alone[0])
    return sorted(found)


def test_sites_whose_totals_follow_by_subtraction():
    assert revealed([{"a", "b", "c", "d"}]) == []
    assert revealed([{"a", "b", "c", "d"}, {"a", "b", "c"}]) == ["d"]
    assert revealed([{"a", "b", "c", "d"}, {"a", "b"}]) == []  # the two together
    assert revealed([{"a", "b", "c", "d"}, {"a", "b"}, {"a", "b", "c"}]) == ["c", "d"]
    assert revealed([{"a", "b"}, {"b", "c"}, {"a", "c"}]) == ["a", "b", "c"]  # (ab - bc + ac) / 2
    assert revealed([{"a", "b", "c"}] * 5 + [{"a", "b"}]) == ["c"]
    assert revealed([]) == []


def test_subtraction_agrees_with_a_search_over_whole_coefficients():
    rng = np.random.default_rng(0)
    some = 0
    for _ in range(60):
        rosters = [{n for n in "abcde" if rng.random() < 0.6} | {"a"} for _ in range(rng.integers(1, 5))]
        assert revealed(rosters) == by_search(rosters)
        some += bool(by_search(rosters))
    assert 10 < some < 60
