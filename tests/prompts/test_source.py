"""Rows to requests: pure in (seed, point, index), the same rows at every point, lengths by rank of who says them."""

from cadenza.prompts.salt import salt
from cadenza.prompts.source import DEFAULT_OUTPUT_TOKENS, Draw, Row, RowSource
from cadenza.record import Message, Phase, Request

ROWS = [Row(messages=(Message(role="user", content=f"q{n}"),), output_tokens=n + 1) for n in range(10)]


def contents(draw: Draw, count: int, rows: list[Row] = ROWS) -> list[str]:
    source = RowSource(rows, draw)
    return [source.request(index).messages[0].content for index in range(count)]


def test_any_worker_makes_the_same_request() -> None:
    draw = Draw(seed=1, point=2, output_tokens=(5, 500))
    forward = [RowSource(ROWS, draw).request(index) for index in range(30)]
    shared = RowSource(ROWS, draw)
    assert [shared.request(index) for index in reversed(range(30))] == forward[::-1]


def test_order_is_a_seeded_shuffle_that_wraps_round() -> None:
    plain = Draw(seed=1, point=0, unique=False)
    order = contents(plain, 20)
    assert sorted(order[:10]) == sorted(f"q{n}" for n in range(10))
    assert order[:10] == order[10:]
    assert order[:10] != [f"q{n}" for n in range(10)]
    assert contents(Draw(seed=2, point=0, unique=False), 10) != order[:10]


def test_every_point_sees_the_same_rows() -> None:
    assert contents(Draw(seed=1, point=0, unique=False), 10) == contents(Draw(seed=1, point=7, unique=False), 10)


def test_the_salt_heads_the_first_message_whatever_its_role() -> None:
    row = Row(messages=(Message(role="system", content="Be brief."), Message(role="user", content="q")))
    request = RowSource([row], Draw(seed=4, point=5)).request(6)
    assert request.messages == (
        Message(role="system", content=f"{salt(4, 5, 6)}\n\nBe brief."),
        Message(role="user", content="q"),
    )


def test_unique_prompts_never_repeat_and_reused_ones_do() -> None:
    salted = [text for point in range(3) for text in contents(Draw(seed=0, point=point), 40)]
    assert len(set(salted)) == len(salted)
    assert len(set(contents(Draw(seed=0, point=0, unique=False), 40))) == 10


def lengths(output_tokens: tuple[int, int] | None, rows: list[Row]) -> list[int]:
    source = RowSource(rows, Draw(seed=0, point=0, output_tokens=output_tokens, unique=False))
    return [source.request(index).output_tokens for index in range(500)]


def test_a_given_range_beats_the_dataset_and_both_ends_are_in_it() -> None:
    assert set(lengths((3, 6), ROWS)) == {3, 4, 5, 6}
    assert set(lengths((9, 9), ROWS)) == {9}


def test_the_dataset_s_own_length_goes_with_its_row() -> None:
    source = RowSource(ROWS, Draw(seed=0, point=0, unique=False))
    for index in range(10):
        request = source.request(index)
        assert request.messages[0].content == f"q{request.output_tokens - 1}"


def test_where_nobody_says_it_is_128_to_256() -> None:
    drawn = lengths(None, [Row(messages=ROWS[0].messages)])
    assert DEFAULT_OUTPUT_TOKENS == (128, 256)
    assert min(drawn) >= 128
    assert max(drawn) <= 256
    assert len(set(drawn)) > 90


def test_a_request_is_due_whenever_the_plan_will_say() -> None:
    request = RowSource(ROWS[:1], Draw(seed=0, point=0, unique=False)).request(12)
    assert request == Request(index=12, messages=ROWS[0].messages, output_tokens=1, due_ns=None, phase=Phase.MEASURE)
