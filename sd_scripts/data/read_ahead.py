"""Read with a pool a little ahead of use."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import islice
from typing import TypeVar

Job = TypeVar("Job")
Result = TypeVar("Result")


def read_ahead(pool: Executor, read: Callable[[Job], Result], jobs: Iterable[Job], count: int) -> Iterator[Result]:
    """Yield the result of `read` for each job, in order, while the pool works on the next `count`."""
    coming = iter(jobs)
    waiting = deque(pool.submit(read, job) for job in islice(coming, count))
    try:
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(read, job) for job in islice(coming, 1))
            yield result
    finally:
        for future in waiting:
            future.cancel()
