"""Server programs: computations at the server that ask the sites, and how several of them share their messages.

A server program is a generator. It yields requests (queries, and whom to ask), receives the sum of the replies to each
query, and returns its result:

    ((evaluated,),) = yield [Request((Evaluate(objective, x),), weights=p)]      # evaluated.gradient: sum_i p_i grad f_i

`run_program` drives a program over a federation and counts what travels. `gather` makes one program of several: in each
step the requests of all that are still under way travel in one message, and those that have finished drop out. A program
that did its rounds without messages (compiled, for sites in this process) yields `Spent`: what a network would have
carried.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from compfed._utils.compilation import jax_settings
from compfed.errors import InputError
from compfed.federation.accounting import Communication, payload, query_cost
from compfed.federation.enrolment import Enrolment
from compfed.federation.queries import Query, Refusal, Replies, SiteRefusal, Weighting
from compfed.federation.server.sums import total

T = TypeVar("T")


class Federation(Protocol):
    """Sites in this process, or sites across a network: a `Replying` or a `Summing` federation."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def cached(self) -> set[str]:
        """Hashes of the records that the sites have received, so that they need not travel again."""
        ...


class Replying(Federation, Protocol):
    """A federation whose replies are added here, in double precision."""

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, Replies]:
        """Send one message to each site named and return one reply from each; an error names the site."""
        ...


class Summing(Federation, Protocol):
    """A federation that returns sums: exact, and masked over a network."""

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        """The facts that the server knows site by site."""
        ...

    def exchange(self, requests: Sequence[Request]) -> tuple[Sums, Communication]:
        """Send one message to every site that is asked something; return the sums of each request, and what they cost."""
        ...


def enrolments_of(federation: Federation) -> tuple[Enrolment, ...] | None:
    """The enrolments of the sites; None where there is no wall between them and the server."""
    return getattr(federation, "enrolments", None)


@dataclass(frozen=True)
class Request:
    """Queries to all sites, or to `sites`, whose replies are added with `weights`.

    Parameters
    ----------
    queries : tuple of Query
    sites : tuple of int, optional
        Positions of the sites that are asked; all unless given.
    weights : array, optional
        The factor of each asked site's reply in the sum; 1 unless given.
    weighting : {"rows", "sites", "once"}
        The factor that each site gives its own reply where sums are exact: the weight of its rows, 1 if it has any, or 1.
        `weights` are proportional to it. The sum is then divided by that of the factors, unless it is "once".
    models : int
        Number of models that the queries are about.
    counts : bool
        False if the same models have another query in the same message.
    """

    queries: tuple[Query, ...]
    sites: tuple[int, ...] | None = None
    weights: np.ndarray | None = None
    weighting: Weighting | None = None
    models: int = 1
    counts: bool = True


@dataclass(frozen=True)
class Spent:
    """Rounds that were done without messages, and what they would have cost."""

    cost: Communication


Sums = list[tuple[Any, ...]]  # of each request, the sum of the replies to each of its queries
Program = Generator[Sequence[Request] | Spent, Any, T]


def run_program(federation: Federation, program: Program[T]) -> tuple[T, Communication]:
    """Drive a program to its result; return it with the messages and bytes it cost."""
    if not hasattr(federation, "send") and not hasattr(federation, "exchange"):
        raise InputError(
            f"a federation is an InProcess(sites), or what connect(...) returns; got {type(federation).__name__}."
        )
    with jax_settings():
        cost, sums = Communication(), None
        while True:
            try:
                step = _advance(program, sums)
            except StopIteration as end:
                return end.value, cost
            sums = None  # sums may be large: the last ones go before the next ones come
            if isinstance(step, Spent):
                cost = cost.then(step.cost)
            else:
                sums, message = _exchange(federation, step)
                cost = cost.then(message)


def _advance(program: Program[Any], sums: Sums | None) -> Sequence[Request] | Spent:
    """Hand a program its sums; a refusal among them is raised inside it, where it may be handled."""
    refused = next((s for request in sums or () for s in request if isinstance(s, Refusal)), None)
    return program.send(sums) if refused is None else program.throw(SiteRefusal(refused.reason, sums))


def gather(programs: Sequence[Program[T]]) -> Program[list[T]]:
    """Run programs side by side as one: they share their messages, so the longest decides how many there are."""
    tasks = [_Task(program) for program in programs]
    for task in tasks:
        task.advance(None)
    steps = 0
    while under_way := [task for task in tasks if not task.done]:
        try:
            sums = yield [request for task in under_way for request in task.requests]
        except SiteRefusal as refusal:  # raised again below in the program that was refused, and in no other
            sums = refusal.sums or []
        steps += 1
        rest = iter(sums)
        for task in under_way:
            task.advance([next(rest) for _ in task.requests])
    apart = Communication()
    for task in tasks:
        apart = apart.beside(replace(task.spent, rounds=task.steps + task.spent.rounds))
    if apart.rounds > steps or apart.models:
        yield Spent(replace(apart, rounds=apart.rounds - steps))
    return [task.result for task in tasks]


def for_site(site: int, n: int, program: Program[T]) -> Program[T]:
    """Run a program with one of n sites, as if there were no other."""
    sums = None
    while True:
        try:
            step = _advance(program, sums)
        except StopIteration as end:
            return end.value
        try:
            if isinstance(step, Spent):
                sums = yield Spent(step.cost.over(n))
            else:
                sums = yield [replace(request, sites=(site,)) for request in step]
        except SiteRefusal as refusal:
            sums = refusal.sums


class SingleSite:
    """One site of a federation, as a federation of its own: what a program over that site alone may know of it."""

    def __init__(self, federation: Federation, site: int):
        self.names, self.cached = (federation.names[site],), federation.cached
        self._federation, self._site = federation, site

    @property
    def enrolments(self) -> tuple[Enrolment, ...] | None:
        """The enrolment of the site; None where there is no wall."""
        known = enrolments_of(self._federation)
        return None if known is None else (known[self._site],)

    @property
    def exchange(self) -> Callable[[Sequence[Request]], tuple[Sums, Communication]] | None:
        """Exact sums over this site alone, where the federation makes them."""
        inner = getattr(self._federation, "exchange", None)
        if inner is None:
            return None
        return lambda requests: inner([replace(request, sites=(self._site,)) for request in requests])

    def send(self, messages: Mapping[int, Sequence[Query]]) -> dict[int, Replies]:
        return {0: cast(Replying, self._federation).send({self._site: messages[0]})[self._site]}


@dataclass
class _Task:
    """A program under way."""

    program: Program[Any]
    requests: Sequence[Request] = ()
    steps: int = 0  # messages it had a part in
    spent: Communication = field(default_factory=Communication)
    result: Any = None
    done: bool = False

    def advance(self, sums: Sums | None) -> None:
        """Run until its next request, or its end."""
        try:
            step = _advance(self.program, sums)
            while isinstance(step, Spent):
                self.spent = self.spent.then(step.cost)
                step = self.program.send(None)
            self.requests, self.steps = step, self.steps + 1
        except StopIteration as end:
            self.result, self.done = end.value, True


def ask(federation: Federation, *queries: Query, weights: np.ndarray | None = None) -> Replies:
    """Send one message to every site; return the weighted sum of the replies to each query."""

    def program() -> Program[tuple[Any, ...]]:
        (sums,) = yield [Request(queries, weights=weights)]
        return sums

    return run_program(federation, program())[0]


def _exchange(federation: Federation, requests: Sequence[Request]) -> tuple[Sums, Communication]:
    """Send one message to every site that is asked something; return the sums of each request, and what they cost."""
    exchange = getattr(federation, "exchange", None)
    if exchange is not None:
        return exchange(requests)
    replying = cast(Replying, federation)
    names = federation.names
    messages: dict[int, list[Query]] = {}
    places = []  # where the queries of each request are in the message to each site
    for request in requests:
        asked = range(len(names)) if request.sites is None else request.sites
        places.append([(i, len(messages.setdefault(i, []))) for i in asked])
        for i in asked:
            messages[i] += request.queries
    replies = replying.send(messages)
    sums, cost = [], Communication(rounds=1)
    for request, spots in zip(requests, places, strict=True):
        here, found = [names[i] for i, _ in spots], []
        for j, query in enumerate(request.queries):
            each = [replies[i][start + j] for i, start in spots]
            down = payload(query, federation.cached) * len(spots) / len(names)
            up = sum(payload(reply, set()) for reply in each) / len(names)
            counted = request.counts and j == 0
            cost = cost.beside(query_cost(type(query).__name__, down, up, request.models, counted))
            found.append(total(query, each, request.weights, here))
        sums.append(tuple(found))
    return sums, cost
