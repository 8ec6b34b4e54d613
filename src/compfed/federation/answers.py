"""What an answer must look like, given its question: kind, fields, shapes, and numbers that are numbers.

Sites in this process cannot get this wrong. A site across a network may be another version, broken or hostile: its answer
is looked at before it enters any sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from compfed.algorithms.shapes import message_shapes
from compfed.errors import InputError
from compfed.federation.messages import unnamed
from compfed.federation.questions import (
    Curvature,
    Describe,
    HeldOut,
    Moments,
    Question,
    Refused,
    Result,
    Round,
    Steepness,
    ValueAndGradient,
)


def fault(questions: Sequence[Question], answers: Any) -> str | None:
    """What is wrong with the answers to a message, for a person; None if nothing is."""
    if not isinstance(answers, tuple) or len(answers) != len(questions):
        said = len(answers) if isinstance(answers, tuple) else type(answers).__name__
        return f"{said} answers to {len(questions)} questions"
    width = None
    for question, answer in zip(questions, answers, strict=True):
        kind = type(question).__name__
        if isinstance(answer, Refused):
            continue
        if type(answer) is not type(question).Answer:  # pyright: ignore[reportAttributeAccessIssue]  # every question has one
            return f"{kind} is answered with {type(answer).__qualname__}"
        if isinstance(answer, Describe.Answer):
            width = answer.width
        try:
            _check(question, answer, width)
        except InputError as wrong:
            return f"{kind}: {wrong}"
    return None


def _check(question: Question, answer: Any, width: int | None) -> None:
    match question:
        case Describe():
            _described(answer)
        case Moments():
            shape = np.shape(answer.mean) if width is None else (width,)
            for name in ("mean", "rest", "square"):
                _numbers(name, getattr(answer, name), shape)
        case Steepness():
            _number("L", answer.L)
        case ValueAndGradient():
            _evaluated(question, answer)
        case Curvature():
            _numbers("triangle", answer.triangle, (question.view.loss.model_numbers(len(question.W)),))
        case HeldOut():
            _number("weight", answer.weight)
            _numbers("loss", answer.loss, (len(question.x),))
        case Round():
            job = question.job  # whether its numbers are finite is the server loop's to judge: a run may diverge
            shapes = message_shapes(job.algorithm, job.regulariser, job.x0.size, job.x0.dtype)
            unnamed(answer.u, shapes[question.exchange].up)
            _truth("finite", answer.finite)
        case Result():
            _truth("finite", answer.finite)


def _described(answer: Describe.Answer) -> None:
    for name in ("rows", "width"):
        value = getattr(answer, name)
        if type(value) is not int or value < 0:
            raise InputError(f"{name} is {value!r}; expected a whole number")
    _number("weight", answer.weight)
    columns = answer.columns
    if columns is not None and (len(columns) != answer.width or not all(isinstance(c, str) for c in columns)):
        raise InputError(f"it names {len(columns)} columns and says there are {answer.width}")
    _numbers("class_weights", answer.class_weights, np.shape(answer.classes))
    if not isinstance(answer.label_mean, np.ndarray) or (not answer.classes.size and np.isnan(answer.label_mean).any()):
        raise InputError("label_mean is not a number")


def _evaluated(question: ValueAndGradient, answer: ValueAndGradient.Answer) -> None:
    models, d = np.shape(question.x)
    _numbers("value", answer.value, (models,))
    _numbers("terms", answer.terms, (models,), nan=True)
    # far from the minimum a loss may be infinite, and the terms of its gradient cancel to no number
    _numbers("gradient", answer.gradient, (models, d), nan=not np.isfinite(answer.value).all())
    if (answer.conjugate is None) != (question.dual is None):
        raise InputError("a conjugate is there without being asked for, or missing")
    if answer.conjugate is not None:
        _numbers("conjugate", answer.conjugate, (models,))


def _numbers(name: str, value: Any, shape: tuple[int, ...], nan: bool = False) -> None:
    """An array of numbers of this shape, none of them NaN unless `nan`."""
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biuf":
        raise InputError(f"{name} is no array of numbers")
    if value.shape != shape:
        raise InputError(f"{name} has shape {value.shape}; expected {shape}")
    if not nan and np.isnan(value).any():
        raise InputError(f"{name} has {int(np.isnan(value).sum())} NaN")


def _number(name: str, value: Any) -> None:
    if type(value) is not float or not np.isfinite(value):
        raise InputError(f"{name} is {value!r}; expected a finite number")


def _truth(name: str, value: Any) -> None:
    if type(value) is not bool:
        raise InputError(f"{name} is {value!r}; expected true or false")
