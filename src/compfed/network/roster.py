"""The roster: the sites of a federation with their public keys, in order, as every one of them pins it.

The operator writes roster.txt (`compfed federation roster DIR`) and every site keeps it beside its site.toml:

    # compfed/roster/1
    north ecdsa-sha2-nistp384 AAAA...
    south ecdsa-sha2-nistp384 AAAA...

Replies are masked for the holders of these keys. An operator who could exchange a key would read what that site adds to a
sum, so people compare one fingerprint over all names and keys by telephone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence, Set
from pathlib import Path

import numpy as np

from compfed._utils.text import join_names, printable
from compfed.errors import InputError
from compfed.network import keys

HEAD = "# compfed/roster/1"
FINGERPRINT_GROUPS, GROUP = 8, 5  # hexadecimal characters: 160 bits
LONGEST = 2**20  # bytes of a roster file: thousands of sites
MIN_MASKED = 3  # sites; of two, each would learn the other's totals by subtraction
ASK = "Ask the operator for roster.txt (`compfed federation roster DIR` writes it)"


def roster_text(roster: keys.Roster) -> str:
    """The roster as a file: a line per site, in order."""
    return "".join(f"{line}\n" for line in (HEAD, *(f"{n} {keys.public_line(key)}" for n, key in roster.items())))


def roster_fingerprint(roster: keys.Roster) -> str:
    """One hash over all names and keys in order, for people to compare by telephone: 160 bits, as 8 groups of 5 characters.

    It is the beginning of the SHA-256 of the file as `roster_text` writes it (`sha256sum roster.txt`). Neither a name nor a
    key has a space or a line break, so that no two rosters have the same text.

    Examples
    --------
    >>> from compfed.network import keys
    >>> key = keys.new_identity().public_key()
    >>> len(roster_fingerprint({"north": key}).split())
    8
    """
    for name in roster:
        keys.check_site_name(name, "the roster")
    hashed = hashlib.sha256(roster_text(roster).encode()).hexdigest()
    return " ".join(hashed[i : i + GROUP] for i in range(0, FINGERPRINT_GROUPS * GROUP, GROUP))


def read_roster(path: Path) -> dict[str, keys.PublicKey]:
    """The public key of every site by name, in the order of the file. Empty lines and lines that begin with # are skipped.

    Raises
    ------
    InputError
        If there is no such file or no site in it, if it is not text, or if a line is not a name and a key, or has the name
        or the key of another.
    """
    try:
        with path.open("rb") as file:
            data = file.read(LONGEST + 1)
    except OSError as problem:
        raise InputError(f"{path}: {problem.strerror}. {ASK}.") from None
    if len(data) > LONGEST:
        raise InputError(f"{path} has more than {LONGEST} bytes and is no roster. {ASK}.")
    try:
        lines = data.decode("ascii").split("\n")
    except UnicodeDecodeError:
        raise InputError(f"{path} is not plain text and is no roster. {ASK}.") from None
    roster: dict[str, keys.PublicKey] = {}
    owners: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        where, (name, _, key) = f"{path}, line {number}", line.strip().partition(" ")
        keys.check_site_name(printable(name, 80), where)
        if name in roster:
            raise InputError(f"{where}: site {name!r} is there twice. {ASK}.")
        roster[name] = keys.parse_public_line(key, where)
        if (owner := owners.setdefault(keys.fingerprint(roster[name]), name)) != name:
            raise InputError(f"{where}: site {name!r} has the key of site {owner!r}; every site makes its own. {ASK}.")
    if not roster:
        raise InputError(f"{path} has no site: a line has a name and a key. {ASK}.")
    return roster


def check_member(roster: keys.Roster, name: str, key: keys.PublicKey, where: Path) -> None:
    """Refuse a roster without this site, or with another key for it."""
    if name not in roster:
        known = join_names(list(roster), most=12)
        raise InputError(f"{where} does not have this site, {name!r}; it has {known}. {ASK}, or correct `name`.")
    if keys.fingerprint(roster[name]) != keys.fingerprint(key):
        wrong = f"{where} has the key {keys.fingerprint(roster[name])} for this site, {name!r}"
        raise InputError(
            f"{wrong}; its node.key is {keys.fingerprint(key)}. Send node.key.pub to the operator, and ask for a new roster."
        )


def check_masked(roster: keys.Roster, where: Path) -> None:
    """Refuse masked sums of fewer than three sites."""
    if len(roster) < MIN_MASKED:
        why = "with two sites each would learn the other's totals by subtraction"
        raise InputError(
            f"{where}: secure_sum = true needs three sites or more, and there {_count(len(roster))}: {why}. Add a site, or "
            "let every site set secure_sum = false in its site.toml; the operator then sees the sums of each."
        )


def _count(sites: int) -> str:
    return "is one" if sites == 1 else f"are {sites}"


def roster_lines(roster: keys.Roster) -> list[str]:
    """The sites with the fingerprints of their keys, then the fingerprint of the roster."""
    width = max(map(len, roster))
    lines = [f"  {name:<{width}}  {keys.fingerprint(key)}" for name, key in roster.items()]
    return [*lines, f"Fingerprint of the roster: {roster_fingerprint(roster)}"]


# --- other rosters than before ---


def revealed(rosters: Sequence[Set[str]]) -> list[str]:
    """The sites whose own totals follow from the totals over these rosters, by adding and subtracting them.

    A site is one of them if its indicator vector lies in the span of the rosters' indicator vectors: the projection onto the
    span then leaves it as it is.

    Examples
    --------
    >>> revealed([{"a", "b", "c", "d"}, {"a", "b", "c"}])
    ['d']
    """
    names = sorted(set().union(*rosters))
    rows = np.array([[name in roster for name in names] for roster in rosters], float).reshape(len(rosters), len(names))
    kept = np.diag(np.linalg.pinv(rows, 1e-9) @ rows)
    return [name for name, share in zip(names, kept, strict=True) if share > 1 - 1e-9]
