"""The desk of a site while `compfed site` runs: rows read once, programs compiled once, messages handed in at a socket."""

from __future__ import annotations

import shutil
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any

from compfed.deployment.courier import from_bytes, received, to_bytes
from compfed.federation.flower.desk import Desk
from compfed.federation.flower.site_settings import SiteSettings


class OpenDesk:
    """Answers at `place` until closed. A site.toml or a table that has changed is read again."""

    def __init__(self, path: Path):
        self.path, self._folder = (
            path,
            Path(tempfile.mkdtemp(prefix="compfed-")),
        )  # mode 0700; a socket's path must be short
        self.place = str(self._folder / "desk")
        self._stamp, self._desk = self._opened()
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(self.place)
        self._socket.listen()
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> OpenDesk:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def _opened(self) -> tuple[Any, Desk]:
        settings = SiteSettings.read(self.path)
        files = [path.stat() for path in (self.path, settings.data) if path.exists()]
        return [(found.st_mtime_ns, found.st_size) for found in files], settings.desk()

    def _serve(self) -> None:
        while True:
            try:
                end, _ = self._socket.accept()
            except OSError:  # closed
                return
            with end:
                try:
                    end.sendall(self._reply(received(end)))
                except Exception:  # whoever came is gone, or did not speak to us: the next one may
                    continue

    def _reply(self, data: bytes) -> bytes:
        what, records = from_bytes(data)
        stamp, desk = self._opened()
        if stamp != self._stamp:
            self._stamp, self._desk = stamp, desk
        return to_bytes(what, self._desk.register() if what == "register" else self._desk.reply(records))
