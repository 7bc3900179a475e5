from cadenza.engine.core.sequence import Sequence
from cadenza.engine.core.waiting import FirstCome, MostUrgent


def sequence(id: int, priority: int = 0) -> Sequence:
    return Sequence(id=id, prompt=(1,), output_tokens=1, arrival_ns=10 * id, priority=priority)


def drain(queue: FirstCome | MostUrgent) -> list[int]:
    return [queue.pop().id for _ in range(len(queue))]


def test_first_come_first_served_and_those_put_back_before_all() -> None:
    queue = FirstCome()
    for id in (3, 1, 2):
        queue.add(sequence(id))
    queue.put_back([sequence(8), sequence(9)])
    assert queue.head().id == 8
    assert [waiting.id for waiting in queue] == [8, 9, 3, 1, 2]
    assert drain(queue) == [8, 9, 3, 1, 2]


def test_the_most_urgent_first_then_the_earliest_wherever_it_comes_from() -> None:
    queue = MostUrgent()
    late, early = sequence(5, priority=1), sequence(4, priority=1)
    queue.add(sequence(6, priority=2))
    queue.add(late)
    queue.add(early)
    queue.put_back([sequence(7, priority=0)])
    assert drain(queue) == [7, 4, 5, 6]


def test_who_leaves_is_gone_and_nobody_else() -> None:
    for queue in (FirstCome(), MostUrgent()):
        kept, gone = sequence(1), sequence(2)
        queue.add(kept)
        queue.add(gone)
        queue.remove(gone)
        assert drain(queue) == [1]
