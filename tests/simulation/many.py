"""Many worlds of the simulation, one after another or on all cores."""

from __future__ import annotations

import gc
import multiprocessing
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager

from tests.simulation.driver import Driver
from tests.simulation.storage import Violation
from tests.simulation.world import Left, World

_SHARE = 500
"""Worlds that a process runs one after another."""
_YOUNG_OBJECTS = 50_000
"""Objects after which the garbage collector looks for cycles; a world that is closed leaves none."""


def run_worlds(seeds: Iterable[int], driver: type[Driver] = Driver) -> Counter[str]:
    """Run a world for each seed; return how often things happened."""
    counts: Counter[str] = Counter()
    with _hardly_collected():
        for seed in seeds:
            try:
                world = World(seed, driver=driver)
                world.run()
            except Exception as error:
                error.add_note(f"{driver.__name__}: `make worlds SEED={seed}` runs this world again.")
                raise
            counts.update(world.counts)
            world.close()
    return counts


def run_on_all_cores(seeds: range, driver: type[Driver]) -> None:
    """Run a world for each seed, in one process per core.

    Raises:
        Exception: The first failure; worlds that have not begun by then are left out.
    """
    shares = [seeds[start : start + _SHARE] for start in range(0, len(seeds), _SHARE)]
    with ProcessPoolExecutor(mp_context=multiprocessing.get_context("spawn")) as processes:
        runs = [processes.submit(run_worlds, share, driver) for share in shares]
        try:
            for run in as_completed(runs):
                run.result()
        finally:
            processes.shutdown(cancel_futures=True)


def violations(left: Left, seeds: Iterable[int], driver: type[Driver] = Driver) -> Iterator[str]:
    """Run worlds without a rule; yield what the checks find."""
    with _hardly_collected():
        for seed in seeds:
            world = World(seed, left, driver)
            try:
                world.run()
            except Violation as violation:
                yield str(violation)
            world.close()


@contextmanager
def _hardly_collected() -> Iterator[None]:
    """Have the garbage collector leave out what is there already, and look seldom."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS)
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
