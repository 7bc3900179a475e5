"""Several processes, one plan: real ones, since a fork has no twin."""

import os
import signal
import time
from collections.abc import Callable

import pytest

from cadenza.errors import CadenzaError, StoreError
from cadenza.load.shard import Board, Share, Tally, run_shards
from cadenza.record import WorkerHealth


def never() -> bool:
    return False


def silent(tally: Tally) -> None:
    pass


def health(share: Share) -> WorkerHealth:
    return WorkerHealth(worker=share.worker, wall_s=1.0, cpu_s=0.5)


@pytest.mark.parametrize(("concurrency", "of", "slots"), [(16, 4, [4, 4, 4, 4]), (7, 3, [3, 2, 2]), (2, 2, [1, 1])])
def test_slots_are_shared_out_whole(concurrency: int, of: int, slots: list[int]) -> None:
    assert [Share(worker, of).slots(concurrency) for worker in range(of)] == slots


def test_a_board_adds_up() -> None:
    board = Board(2)
    board.count(0, measured=True, failed=False, tokens=5, now_ns=10)
    board.count(1, measured=True, failed=True, tokens=0, now_ns=30)
    board.count(1, measured=False, failed=True, tokens=7, now_ns=20)
    assert board.total() == Tally(ended=2, failed=1, tokens=12, last_ns=20)


@pytest.mark.slow
def test_workers_count_where_the_parent_sees_it_and_come_back_in_order() -> None:
    board, seen = Board(3), list[Tally]()

    def work(share: Share, stop: Callable[[], bool]) -> WorkerHealth:
        for _ in range(100):
            board.count(share.worker, measured=True, failed=False, tokens=2, now_ns=share.worker)
        return health(share)

    healths = run_shards(3, work, board, seen.append, never)
    assert [item.worker for item in healths] == [0, 1, 2]
    assert board.total() == Tally(ended=300, failed=0, tokens=600, last_ns=2)
    assert seen


@pytest.mark.slow
def test_stop_reaches_every_worker() -> None:
    board = Board(2)

    def work(share: Share, stop: Callable[[], bool]) -> WorkerHealth:
        while not stop():
            time.sleep(0.01)
        return health(share)

    assert len(run_shards(2, work, board, silent, lambda: True)) == 2


@pytest.mark.slow
def test_a_killed_worker_ends_the_others_and_is_named() -> None:
    def work(share: Share, stop: Callable[[], bool]) -> WorkerHealth:
        if share.worker == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        while not stop():
            time.sleep(0.01)
        return health(share)

    with pytest.raises(CadenzaError, match="worker 1 of the client was killed by SIGKILL"):
        run_shards(2, work, Board(2), silent, never)


@pytest.mark.slow
def test_a_workers_own_error_keeps_its_words_and_its_exit_code() -> None:
    def work(share: Share, stop: Callable[[], bool]) -> WorkerHealth:
        raise StoreError("cannot write x: no room")

    with pytest.raises(StoreError, match="cannot write x: no room"):
        run_shards(2, work, Board(2), silent, never)


@pytest.mark.slow
def test_a_bug_in_a_worker_is_one_line() -> None:
    def work(share: Share, stop: Callable[[], bool]) -> WorkerHealth:
        raise ZeroDivisionError("oh")

    with pytest.raises(CadenzaError, match=r"worker 0 of the client broke off \(ZeroDivisionError: oh\)"):
        run_shards(2, work, Board(2), silent, never)
