"""Conversations: how a computation at the server asks its questions, and how several of them share their messages.

A computation that needs the sites is a generator, a *talk*. It yields requests (what to ask, and of whom), receives the
answers, and returns its result:

    (answers,) = yield [Request((ValueAndGradient(view, x),))]      # answers[i][j]: of site i to question j

`converse` drives a talk over a federation and counts what travels. `in_parallel` makes one talk of several: in each
step the requests of all that are still under way travel in one message, and those that have finished drop out. A talk
that did its rounds without messages (compiled, for sites in this process) yields `Spent`: what a network would have
carried.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from compfed._utils.precision import our_settings
from compfed.errors import InputError
from compfed.federation.accounting import Communication, asked
from compfed.federation.codec import payload
from compfed.federation.queries import Query, Refusal, SiteRefusal

T = TypeVar("T")


class Federation(Protocol):
    """Whoever answers: sites in this process, or sites across a network."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def cached(self) -> set[str]:
        """Hashes of the records its sites have been told, so that they need not travel again."""
        ...

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, tuple[Any, ...]]:
        """One message to each site named, one reply from each; an error names the site."""
        ...


@dataclass(frozen=True)
class Request:
    """Questions for all sites, or for those in `of`, about so many models.

    `counts` unless the models have another question in the same message.
    """

    queries: tuple[Query, ...]
    of: tuple[int, ...] | None = None
    models: int = 1
    counts: bool = True


@dataclass(frozen=True)
class Spent:
    """Rounds that were done without messages, and what they would have cost."""

    cost: Communication


Program = Generator[Sequence[Request] | Spent, Any, T]


def run_program(federation: Federation, talk: Program[T]) -> tuple[T, Communication]:
    """The result of a talk, and what it cost."""
    if not hasattr(federation, "send"):
        raise InputError(
            f"a federation has names, told and send (such as InProcess(sites)); got {type(federation).__name__}."
        )
    with our_settings():
        return _driven(federation, talk)


def _driven(federation: Federation, talk: Program[T]) -> tuple[T, Communication]:
    cost, replies = Communication(), None
    while True:
        try:
            said = _deliver(talk, replies)
        except StopIteration as end:
            return end.value, cost
        if isinstance(said, Spent):
            cost, replies = cost.then(said.cost), None
        else:
            replies = None  # answers of many sites are large: the last ones go before the next ones come
            replies, message = _exchange(federation, said)
            cost = cost.then(message)


def _deliver(talk: Program[Any], replies: Any) -> Sequence[Request] | Spent:
    """Hand a talk its answers; one that was refused something hears of it as an error, which it may handle."""
    answers = (answer for request in replies or () for site in request for answer in site)
    refused = next((answer for answer in answers if isinstance(answer, Refusal)), None)
    return talk.send(replies) if refused is None else talk.throw(SiteRefusal(refused.reason, replies))


def gather(talks: Sequence[Program[T]]) -> Program[list[T]]:
    """All of them as one: they share their messages, so the longest decides how many rounds there are."""
    speakers = [_Speaker(talk) for talk in talks]
    for speaker in speakers:
        speaker.go_on(None)
    steps = 0
    while under_way := [speaker for speaker in speakers if not speaker.done]:
        try:
            replies = yield [request for speaker in under_way for request in speaker.requests]
        except SiteRefusal as refusal:  # one of them was refused something: it hears of it below, the others do not
            replies = refusal.replies
        steps += 1
        rest = iter(replies)
        for speaker in under_way:
            speaker.go_on([next(rest) for _ in speaker.requests])
    apart = Communication()
    for speaker in speakers:
        apart = apart.beside(replace(speaker.spent, rounds=speaker.steps + speaker.spent.rounds))
    if apart.rounds > steps or apart.models:
        yield Spent(replace(apart, rounds=apart.rounds - steps))
    return [speaker.result for speaker in speakers]


def for_site(site: int, n: int, talk: Program[T]) -> Program[T]:
    """The talk with one of n sites, as if there were no other."""
    replies = None
    while True:
        try:
            said = _deliver(talk, replies)
        except StopIteration as end:
            return end.value
        try:
            if isinstance(said, Spent):
                replies = yield Spent(said.cost.over(n))
            else:
                replies = yield [replace(request, of=(site,)) for request in said]
        except SiteRefusal as refusal:
            replies = refusal.replies


class SingleSite:
    """A federation seen as one of its sites: what a talk over that site alone is told of it."""

    def __init__(self, federation: Federation, site: int):
        self.names, self.cached = (federation.names[site],), federation.cached
        self._federation, self._site = federation, site

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, tuple[Any, ...]]:
        return {0: self._federation.send({self._site: messages[0]})[self._site]}


@dataclass
class _Speaker:
    """A talk under way."""

    talk: Program[Any]
    requests: Sequence[Request] = ()
    steps: int = 0  # messages it had a part in
    spent: Communication = field(default_factory=Communication)
    result: Any = None
    done: bool = False

    def go_on(self, replies: Any) -> None:
        """On to the next question, or to the end."""
        try:
            said = _deliver(self.talk, replies)
            while isinstance(said, Spent):
                self.spent = self.spent.then(said.cost)
                said = self.talk.send(None)
            self.requests, self.steps = said, self.steps + 1
        except StopIteration as end:
            self.result, self.done = end.value, True


def ask(federation: Federation, *queries: Query) -> list[tuple[Any, ...]]:
    """One message to every site; their answers in the order of the sites."""

    def talk() -> Program[list[tuple[Any, ...]]]:
        (answers,) = yield [Request(queries)]
        return answers

    return run_program(federation, talk())[0]


def _exchange(federation: Federation, requests: Sequence[Request]) -> tuple[list[Any], Communication]:
    """One message to every site that is asked something; the answers to each request, and what they cost."""
    n = len(federation.names)
    messages: dict[int, list[Query]] = {}
    places = []  # where the questions of each request are in the message to each site
    for request in requests:
        who = range(n) if request.of is None else request.of
        places.append([(i, len(messages.setdefault(i, []))) for i in who])
        for i in who:
            messages[i] += request.queries
    replies = federation.send(messages)
    answers, cost = [], Communication(rounds=1)
    for request, spots in zip(requests, places, strict=True):
        answers.append([replies[i][start : start + len(request.queries)] for i, start in spots])
        cost = cost.beside(_cost(request, answers[-1], n, federation.cached))
    return answers, cost


def _cost(request: Request, answers: Sequence[tuple[Any, ...]], n: int, cached: set[str]) -> Communication:
    """Bytes of a request, on average over all sites."""
    cost, share = Communication(), len(answers) / n
    for j, query in enumerate(request.queries):
        down = payload(query, cached) * share
        up = sum(payload(answer[j], set()) for answer in answers) / n
        cost = cost.beside(asked(type(query).__name__, down, up, request.models, request.counts and j == 0))
    return cost
