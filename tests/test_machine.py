import threading
from contextlib import closing

import pytest

from bixse.machine import ahead


def threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("bixse-ahead")]


@pytest.mark.parametrize("number", [0, 1, 3])
def test_results_are_in_order(number):
    assert list(ahead(lambda n: n * n, iter(range(7)), number)) == [n * n for n in range(7)]
    assert list(ahead(str, [], number)) == threads() == []


def test_a_thread_works_on_the_next_items_alone():
    started, seen = [], []
    with closing(ahead(started.append, range(100), 2)) as results:
        for _ in results:
            seen.append(len(started))
            if len(seen) == 10:
                break
    assert all(number <= count + 2 for count, number in enumerate(seen, start=1))
    assert len(started) <= 12 and threads() == []


def test_an_error_of_the_thread_is_raised_in_its_turn():
    results = ahead(lambda n: 6 // n, [3, 2, 0, 1])
    assert [next(results), next(results)] == [2, 3]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert threads() == []
