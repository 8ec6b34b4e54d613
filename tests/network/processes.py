"""A federation of processes on this machine, made with the commands that an operator and its sites type. For tests only."""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from network.memory_link import approve_all

from compfed.cli import main
from compfed.cli.demo import Loopback, end_process, free_port


def command(*arguments: Any) -> str:
    """The output of a command of compfed, run in this process; it must succeed."""
    out, error, umask = io.StringIO(), io.StringIO(), os.umask(0o022)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(error):
            status = main([str(argument) for argument in arguments])
    finally:
        os.umask(umask)
    assert status == 0, error.getvalue()
    return out.getvalue()


class Processes(Loopback):
    """A SuperLink and sites with tables of their own: `compfed federation new`, `keys --demo`, `serve`, and `compfed site run`."""

    def __init__(self, home: Path, tables: Mapping[str, bytes], settings: str, *, federation: str = ""):
        """`settings` are lines of every site.toml above [network]; `federation` is the top of federation.toml."""
        self.home, self.names = home.absolute(), tuple(tables)
        self.environment, self.processes = dict(os.environ), {}
        address = f"127.0.0.1:{free_port()}"
        command("federation", "new", home, "--sites", ",".join(tables), "--superlink", address)
        if federation:
            self.rewrite(federation)
        command("federation", "keys", home, "--demo")
        for name, data in tables.items():
            folder = self.site_folder(name)
            (folder / "rows.csv").write_bytes(data)
            toml = folder / "site.toml"
            toml.write_text(toml.read_text().replace('label = "label" ', f"{settings}\n#"))

    def rewrite(self, head: str) -> None:
        """Write the estimator and its parameters into federation.toml."""
        path = self.home / "federation.toml"
        path.write_text(head + "\n[network]" + path.read_text().partition("\n[network]")[2])

    @contextlib.contextmanager
    def approving(self) -> Iterator[None]:
        """With a person who looks at every site once a second, and approves what waits there."""
        ended = threading.Event()

        def look() -> None:
            while not ended.wait(1.0):
                for name in self.names:
                    approve_all(self.site_folder(name) / "site.toml")

        person = threading.Thread(target=look)
        person.start()
        try:
            yield
        finally:
            ended.set()
            person.join()

    def adopt(self, schema: str) -> None:
        """Give every site a schema, as the operator sends it, and restart the sites."""
        for name in self.names:
            folder = self.site_folder(name)
            (folder / "schema.toml").write_text(schema, encoding="utf-8")
            toml = folder / "site.toml"
            text = toml.read_text()
            if not text.startswith("schema ="):
                toml.write_text(f'schema = "schema.toml"\n{text}')
            if name in self.processes:
                end_process(self.processes.pop(name))
                self.start_site(name)
