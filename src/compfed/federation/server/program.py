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

import inspect
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeGuard, TypeVar, runtime_checkable

import numpy as np

from compfed._utils.compilation import jax_settings
from compfed._utils.plain import Record
from compfed._utils.threads import one_blas_thread
from compfed.errors import InputError
from compfed.federation.accounting import Communication
from compfed.federation.enrolment import Agreement, Enrolment
from compfed.federation.query import Query, Refusal, SiteRefusal, Weighted, Weighting
from compfed.federation.sentence import Stated
from compfed.schema import Schema

T = TypeVar("T")


class Federation(Protocol):
    """Sites that are asked for sums: in this process, across a network, or a record of either."""

    @property
    def names(self) -> tuple[str, ...]: ...
    @property
    def schema(self) -> Schema | None:
        """The schema that the sites encoded their rows with; None without one."""
        ...

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        """The facts that the server knows site by site."""
        ...

    @property
    def problems(self) -> Sequence[Record]:
        """What went wrong on the way and was mended: time, number of the message, site, and the problem in words."""
        ...

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        """Send one message to every site that is asked something; return the sums of each request, and what it cost."""
        ...


@runtime_checkable
class CountedFederation(Federation, Protocol):
    """Sites that count what leaves, and decide about a run before it begins: those of a network."""

    why: str  # the operator's reason for more numbers than a rule may approve; "" without one

    @property
    def numbers(self) -> float:
        """What has been released so far."""
        ...

    def state(self, stated: Stated) -> None:
        """State what the next messages are for."""
        ...


MEMBERS = ("names", "schema", "enrolments", "problems", "exchange")


class Summed(tuple[Any, ...]):
    """The sum of the replies to each query of a request, and what the request cost."""

    cost: Communication

    def __new__(cls, sums: Iterable[object], cost: Communication) -> Summed:
        made = super().__new__(cls, sums)
        made.cost = cost
        return made


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
    weighting : {"rows", "sites", "once"}, optional
        The factor that each site gives its own reply: the weight of its rows, 1 if it has any, or 1. `weights` are
        proportional to it, and not used. The sum is then divided by that of the factors, unless it is "once".
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


QuerySums = tuple[Any, ...]  # of the queries of a request
Sums = Sequence[QuerySums]  # of each request
Program = Generator[Sequence[Request] | Spent, Any, T]


def counts(federation: Federation) -> TypeGuard[CountedFederation]:
    """Whether its sites count what leaves: those of a network do, a rehearsal does not."""
    return isinstance(federation, CountedFederation)


def state(federation: Federation, stated: Stated) -> None:
    """State what a program is about to ask, where sites count what leaves. Each program is stated before it runs."""
    if counts(federation):
        federation.state(stated)


def state_query(federation: Federation, kind: str, query: Query, parameters: str = "", times: int = 1) -> None:
    """State one query, whose numbers are known: its words, as often as it may be asked for again with larger fields."""
    if counts(federation):
        layout = Weighted(query, query.own_weighting).layout(Agreement(federation.names, federation.enrolments))
        state(federation, Stated(kind, parameters, numbers=times * layout.words, messages=times))


def run_program(federation: Federation, program: Program[T]) -> tuple[T, Communication]:
    """Drive a program to its result; return it with the messages and bytes it cost."""
    check_federation(federation, "a server program")
    with jax_settings(), one_blas_thread():
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
                sums, message = federation.exchange(step)
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


@dataclass(frozen=True)
class OneSite:
    """One site of a federation, as a federation of its own: what a program over that site alone may know of it."""

    whole: Federation
    site: int

    @property
    def names(self) -> tuple[str, ...]:
        return (self.whole.names[self.site],)

    @property
    def schema(self) -> Schema | None:
        return self.whole.schema

    @property
    def enrolments(self) -> tuple[Enrolment, ...]:
        return (self.whole.enrolments[self.site],)

    @property
    def problems(self) -> Sequence[Record]:
        return self.whole.problems

    def exchange(self, requests: Sequence[Request]) -> tuple[Sequence[Summed], Communication]:
        return self.whole.exchange([replace(request, sites=(self.site,)) for request in requests])


def is_federation(given: object) -> bool:
    """Whether it declares the members of a federation. Reads none of them: over a network, one sends a message."""
    missing = object()
    return all(inspect.getattr_static(given, name, missing) is not missing for name in MEMBERS)


def check_federation(given: object, what: str) -> None:
    """Refuse what is no federation, where a person hands one in."""
    if not is_federation(given):
        raise InputError(
            f"{what} takes a federation: an InProcess(sites), or what cf.network.connect returns; got {type(given).__name__}."
        )


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


def ask(federation: Federation, *queries: Query, weights: np.ndarray | None = None) -> QuerySums:
    """Send one message to every site; return the weighted sum of the replies to each query."""

    def program() -> Program[QuerySums]:
        (sums,) = yield [Request(queries, weights=weights)]
        return sums

    return run_program(federation, program())[0]
