from zlib import crc32

from hypothesis import given
from hypothesis import strategies as st

from cadenza.engine.api.text import (
    GENERATION_TOK,
    TEMPLATE_TOK_PER_MESSAGE,
    WORDS,
    Vocabulary,
    encode,
    encode_chat,
    salted,
    word,
    word_id,
)


def test_a_prompt_is_its_words_by_their_checksums() -> None:
    assert encode("  one two\nthree\t one ") == [crc32(said) for said in (b"one", b"two", b"three", b"one")]
    assert encode("") == []
    assert encode("123456789") == [0xCBF43926]


def test_a_chat_is_words_and_the_template_around_each_message_and_before_the_answer() -> None:
    ids = encode_chat([("system", "be brief"), ("user", "why is the sky blue")])
    assert len(ids) == 2 + 5 + 2 * TEMPLATE_TOK_PER_MESSAGE + GENERATION_TOK
    assert ids[:5] == [151644, crc32(b"system"), 198, crc32(b"be"), crc32(b"brief")]
    assert ids[5:8] == [151645, 198, 151644]
    assert ids[-3:] == [151644, crc32(b"assistant"), 198]
    assert encode_chat([("user", "a")], generation_prompt=False) == encode_chat([("user", "a")])[:-3]


def test_a_follow_up_begins_with_all_that_was_read_and_said_before() -> None:
    before = encode_chat([("user", "why is the sky blue")])
    produced = [word_id(7, n) for n in range(1, 51)]
    said = "".join(word(7, n) for n in range(1, 51))
    after = encode_chat([("user", "why is the sky blue"), ("assistant", said), ("user", "go on")])
    assert after[: len(before) + 50] == before + produced


def test_generated_tokens_are_single_words_that_need_no_escaping() -> None:
    assert all(said[0] == " " and said[1:].isascii() and said[1:].isalpha() for said in WORDS)
    text = "".join(word(7, n) for n in range(1, 101))
    assert encode(text) == [word_id(7, n) for n in range(1, 101)]


def test_a_salt_makes_a_prompt_share_no_prefix_with_others() -> None:
    ids = encode("a b c")
    assert salted(ids, "x")[1:] == ids[1:]
    assert len({ids[0], salted(ids, "x")[0], salted(ids, "y")[0]}) == 3
    assert salted(ids, "x") == salted(encode("a b c"), "x")
    assert 0 < salted(ids, "x")[0] < 1 << 63


def test_what_was_learned_is_decoded_up_to_the_vocabularys_size() -> None:
    vocabulary = Vocabulary(most=2)
    vocabulary.learn(["uno due", "tre steady"])
    assert vocabulary.pieces(encode("uno due tre steady")) == ["uno", "due", "", "steady"]
    assert vocabulary.decode(encode("uno due tre steady")) == "uno due steady"


@given(st.lists(st.tuples(st.text("uas>< ", min_size=1), st.text("ab \n<>"))))
def test_a_chat_decodes_to_its_template(messages: list[tuple[str, str]]) -> None:
    vocabulary = Vocabulary()
    vocabulary.learn(text for message in messages for text in message)
    messages = [(role.replace(" ", "x"), text) for role, text in messages]
    vocabulary.learn(role for role, _ in messages)
    turns = (f"<|im_start|>{role}\n{' '.join(text.split())}<|im_end|>\n" for role, text in messages)
    assert vocabulary.decode(encode_chat(messages, generation_prompt=False)) == "".join(turns)
