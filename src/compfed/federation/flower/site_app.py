"""The ClientApp of a site. Flower starts it in a new process for every message."""

from __future__ import annotations

import functools

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from compfed.errors import InputError
from compfed.federation.flower.desk import Desk
from compfed.federation.flower.site_settings import SiteSettings

SETTING = "site-config"  # in the configuration of the node: the path of its site.toml


def client_app() -> ClientApp:
    """Answers questions with the rows that the node's site.toml names."""
    app = ClientApp()

    @app.query()
    def register(message: Message, context: Context) -> Message:
        return Message(answered("register", message.content, context), reply_to=message)

    @app.train()
    def answer(message: Message, context: Context) -> Message:
        return Message(answered("reply", message.content, context), reply_to=message)

    return app


def answered(what: str, records: RecordDict, context: Context) -> RecordDict:
    """What the desk of the node's site says, in this process."""
    desk = _desk(context)
    return desk.register() if what == "register" else desk.reply(records)


def _desk(context: Context) -> Desk:
    path = context.node_config.get(SETTING)
    if not path:
        raise InputError(f"this node has no {SETTING}; start it with `compfed site --config site.toml`.")
    return _opened(str(path))


@functools.lru_cache(maxsize=64)  # nodes simulated in one process keep their rows; a real one has a process per message
def _opened(path: str) -> Desk:
    return SiteSettings.read(path).desk()
