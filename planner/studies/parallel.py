"""Many independent questions at once: on this machine's cores, or on a cluster of machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from planner.errors import PlannerError, listed, nearest

FEW = 8
"""Questions that are answered one after another: starting workers takes longer."""
PATIENCE = 10.0
"""Seconds that a Dask scheduler has to answer."""
BACKENDS = ("local", "dask", "ray")
Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


def answers(
    ask: Callable[[Asked], Answer],
    questions: Sequence[Asked],
    *,
    jobs: int | None = None,
    backend: str = "local",
    done: Callable[[int, int], None] | None = None,
) -> list[Answer]:
    """The answers to many questions, in their order; after Ctrl-C those that there are.

    Args:
        ask: a function of a module, so that other processes find it.
        questions: all of them.
        jobs: processes; None takes all cores where there are more than a few questions and joblib is installed.
        backend: ``local``, ``dask=ADDRESS`` of a Dask scheduler, or ``ray=ADDRESS``; without an address Dask and Ray
            start workers on this machine.
        done: called with the number of answers so far and of all.

    Raises:
        PlannerError: an unknown backend or one that does not answer (A03), or a library that is not installed (A05).
    """
    name, _, address = backend.partition("=")
    if name not in BACKENDS:
        close = listed(nearest(name, BACKENDS, 2))
        raise PlannerError.of(
            "A03",
            f"--backend cannot be '{backend}'. Nearest: {close}.",
            f"Possible: {listed(BACKENDS)}.",
        )
    alone = name == "local" and (
        jobs == 1 or (jobs is None and (len(questions) <= FEW or not _has_joblib()))
    )
    found: list[Answer] = []
    with (
        _workers(name, address) if not alone else contextlib.nullcontext(),
        contextlib.suppress(KeyboardInterrupt),
    ):
        results = map(ask, questions) if alone else _spread(ask, questions, jobs, name)
        for result in results:
            found.append(result)
            if done is not None:
                done(len(found), len(questions))
    return found


def _has_joblib() -> bool:
    from importlib.util import find_spec

    return find_spec("joblib") is not None


def _spread(
    ask: Callable[[Asked], Answer], questions: Sequence[Asked], jobs: int | None, name: str
) -> Iterator[Answer]:
    joblib = _library("joblib", "parallel")
    form = "list" if name == "ray" else "generator"
    workers = joblib.Parallel(n_jobs=jobs or -1, return_as=form, batch_size=1)
    yield from workers(joblib.delayed(ask)(question) for question in questions)


@contextlib.contextmanager
def _workers(name: str, address: str) -> Iterator[None]:
    """The machines that joblib hands work to."""
    joblib = _library("joblib", "parallel")
    if name == "local":
        yield
    elif name == "dask":
        distributed = _library("distributed", "dask")
        with _reached(f"dask={address}"):
            here = {"address": address} if address else {"dashboard_address": ":0"}
            client = distributed.Client(timeout=PATIENCE, **here)
        with client, joblib.parallel_config("dask"):
            yield
    else:
        ray = _library("ray", "ray")
        mine = not ray.is_initialized()
        if mine:
            with _reached(f"ray={address}"):
                ray.init(address=address or None, logging_level="error", log_to_driver=False)
        _library("ray.util.joblib", "ray").register_ray()
        try:
            with joblib.parallel_config("ray"):
                yield
        finally:
            if mine:
                ray.shutdown()


@contextlib.contextmanager
def _reached(backend: str) -> Iterator[None]:
    """Turns a scheduler that does not answer, or an address that is none, into wrong input."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise PlannerError.of(
            "A03",
            f"--backend {backend}: no scheduler answers there ({error}).",
            "Write it like dask=tcp://HOST:8786 or ray=HOST:6379.",
        ) from None


def _library(name: str, extra: str):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from importlib import import_module

    try:
        return import_module(name)
    except ImportError:
        raise PlannerError.of(
            "A05",
            f"{name.partition('.')[0]} is not installed.",
            f"To fix it: pip install 'shardwright[{extra}]'",
        ) from None
