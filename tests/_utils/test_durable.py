"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from compfed._utils import files as durable


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path):
    """A disk with room for a part of the line: the limit on the size of a file stands in for it."""
    path = tmp_path / "log.jsonl"
    script = (
        "import json, resource, signal, sys\n"
        "from pathlib import Path\n"
        "from compfed._utils import durable\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "durable.append(Path(sys.argv[1]), {'a': 1})\n"
        "try:\n"
        "    durable.append(Path(sys.argv[1]), {'a': 'x' * 300})\n"
        "except OSError:\n"
        "    print('refused')\n"
        "durable.append(Path(sys.argv[1]), {'a': 2})\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2}]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100  # of that process only


def test_a_lock_is_held_by_one(tmp_path):
    with (
        durable.locked(tmp_path / "lock"),
        pytest.raises(BlockingIOError),
        durable.locked(tmp_path / "lock", wait=False),
    ):
        pass
    with durable.locked(tmp_path / "lock", wait=False) as handle:
        assert os.fstat(handle).st_mode & 0o777 == 0o600


def test_damage_is_noticed(tmp_path):
    path = tmp_path / "state"
    durable.write_checked(path, b"some numbers")
    assert durable.read_checked(path) == b"some numbers"
    for k in range(len(path.read_bytes())):
        data = bytearray(path.read_bytes())
        data[k] ^= 1
        (tmp_path / "damaged").write_bytes(data)
        assert durable.read_checked(tmp_path / "damaged") is None
    assert durable.read_checked(tmp_path / "missing") is None
