"""Files that are there whole or not at all."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys

import pytest

from compfed._utils import files


def test_a_line_that_does_not_fit_leaves_nothing(tmp_path):
    """A disk with room for a part of the line: the limit on the size of a file stands in for it."""
    path = tmp_path / "log.jsonl"
    script = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from compfed._utils import files\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        "files.append_line(Path(sys.argv[1]), b'{\"a\": 1}')\n"
        "try:\n"
        "    files.append_line(Path(sys.argv[1]), b'x' * 300)\n"
        "except OSError:\n"
        "    print('refused')\n"
        "files.append_line(Path(sys.argv[1]), b'{\"a\": 2}')\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"a": 1}, {"a": 2}]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != 100  # of that process only


def test_a_lock_is_held_by_one(tmp_path):
    with (
        files.locked(tmp_path / "lock"),
        pytest.raises(BlockingIOError),
        files.locked(tmp_path / "lock", wait=False),
    ):
        pass
    with files.locked(tmp_path / "lock", wait=False) as handle:
        assert os.fstat(handle).st_mode & 0o777 == 0o600


def test_damage_is_noticed(tmp_path):
    path = tmp_path / "state"
    files.write_checked(path, b"some numbers")
    assert files.read_checked(path) == b"some numbers"
    for k in range(len(path.read_bytes())):
        data = bytearray(path.read_bytes())
        data[k] ^= 1
        (tmp_path / "damaged").write_bytes(data)
        assert files.read_checked(tmp_path / "damaged") is None
    assert files.read_checked(tmp_path / "missing") is None
