"""Python threads in all kinds of waiting, and threads that do not wait."""

from __future__ import annotations

import concurrent.futures
import hashlib
import queue
import threading
import time
from collections.abc import Iterator

from checkpointed import main, wait_until


def start(body, *arguments) -> threading.Thread:  # type: ignore[no-untyped-def]
    thread = threading.Thread(target=body, args=arguments, daemon=True)
    thread.start()
    return thread


def state_lock() -> Iterator[None]:
    lock, got = threading.Lock(), []
    lock.acquire()
    threads = [start(lambda: (lock.acquire(), got.append(1), lock.release())) for _ in range(3)]
    yield
    assert not got and lock.locked()
    lock.release()
    for thread in threads:
        thread.join(10)
    assert len(got) == 3


def state_recursive_lock() -> Iterator[None]:
    lock, got = threading.RLock(), []
    lock.acquire()
    lock.acquire()
    thread = start(lambda: (lock.acquire(), got.append(1), lock.release()))
    yield
    assert lock._is_owned() and not got  # type: ignore[attr-defined]
    lock.release()
    lock.release()
    thread.join(10)
    assert got


def state_condition() -> Iterator[None]:
    condition, result = threading.Condition(), []

    def body() -> None:
        with condition:
            result.append(condition.wait(60))

    thread = start(body)
    yield
    with condition:
        condition.notify()
    thread.join(10)
    assert result == [True]


def state_timed_waits() -> Iterator[None]:
    event, result = threading.Event(), []

    def body(seconds: float) -> None:
        begin = time.monotonic()
        assert not event.wait(seconds)
        result.append(time.monotonic() - begin >= seconds)

    threads = [start(body, s) for s in (1.0, 2.0, 4.0)]
    yield
    for thread in threads:
        thread.join(30)
    assert result == [True] * 3


def state_queue() -> Iterator[None]:
    todo: queue.Queue[int] = queue.Queue()
    done: queue.Queue[int] = queue.Queue()
    simple: queue.SimpleQueue[int] = queue.SimpleQueue()

    def body() -> None:
        while (item := todo.get()) >= 0:
            done.put(item * item)
        done.put(simple.get())

    thread = start(body)
    yield
    for i in (2, 3, -1):
        todo.put(i)
    simple.put(7)
    assert [done.get(timeout=10) for _ in range(3)] == [4, 9, 7]
    thread.join(10)


def state_sleep() -> Iterator[None]:
    result = []

    def body() -> None:
        begin = time.monotonic()
        time.sleep(3)
        result.append(time.monotonic() - begin)

    thread = start(body)
    yield
    thread.join(20)
    assert result and result[0] >= 2.999, result


def state_barrier_and_semaphore() -> Iterator[None]:
    barrier, semaphore, got = threading.Barrier(4), threading.Semaphore(0), []

    def body() -> None:
        barrier.wait(60)
        semaphore.acquire()
        got.append(1)

    threads = [start(body) for _ in range(3)]
    yield
    barrier.wait(10)
    semaphore.release(3)
    for thread in threads:
        thread.join(10)
    assert len(got) == 3


def state_computing() -> Iterator[None]:
    """A thread in pure Python code, one in C code without the GIL."""
    stop, counts, digests = threading.Event(), [0], []

    def count() -> None:
        while not stop.is_set():
            counts[0] += 1
            sum(range(100))

    data = b"x" * 3_000_000

    def digest() -> None:
        while not stop.is_set():
            digests.append(hashlib.sha256(data).hexdigest())

    threads = [start(count), start(digest)]
    yield
    before, many = counts[0], len(digests)
    wait_until(lambda: counts[0] > before and len(digests) > many)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert len(set(digests)) == 1


def state_identity() -> Iterator[None]:
    local, seen = threading.local(), {}
    resume = threading.Event()

    def body(name: str) -> None:
        local.value = name
        seen[name] = (threading.get_ident(), threading.get_native_id())
        resume.wait()
        assert local.value == name
        seen[name + "'"] = (threading.get_ident(), threading.get_native_id())

    threads = [start(body, name) for name in "abc"]
    main_id = threading.get_native_id()
    wait_until(lambda: len(seen) == 3)
    yield
    resume.set()
    for thread in threads:
        thread.join(10)
    assert all(seen[n] == seen[n + "'"] for n in "abc"), seen
    assert threading.get_native_id() == main_id


def state_pool() -> Iterator[None]:
    pool = concurrent.futures.ThreadPoolExecutor(4)
    assert list(pool.map(lambda x: x * 2, range(20))) == list(range(0, 40, 2))
    slow = [pool.submit(time.sleep, 0.5) for _ in range(8)]
    yield
    assert [f.result(20) for f in slow] == [None] * 8
    assert list(pool.map(lambda x: x * 3, range(20))) == list(range(0, 60, 3))
    pool.shutdown()


def state_churn() -> Iterator[None]:
    """Threads start and end all the time, also during the checkpoint."""
    stop, finished, errors = threading.Event(), [0], []

    def short() -> None:
        finished[0] += 1

    def churn() -> None:
        try:
            while not stop.is_set():
                workers = [threading.Thread(target=short) for _ in range(5)]
                for worker in workers:
                    worker.start()
                for worker in workers:
                    worker.join()
        except BaseException as error:
            errors.append(error)

    threads = [start(churn) for _ in range(2)]
    yield
    before = finished[0]
    wait_until(lambda: finished[0] > before + 100 or errors)
    stop.set()
    for thread in threads:
        thread.join(10)
    assert not errors, errors


def state_new_threads() -> Iterator[None]:
    ended = start(lambda: None)
    yield
    ended.join(10)
    got: list[int] = []
    threads = [start(got.append, i) for i in range(50)]
    for thread in threads:
        thread.join(10)
    assert len(got) == 50


main(globals())
