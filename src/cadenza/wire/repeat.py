"""A shortcut for the one event that fills a stream: the last one again, with another piece of text in it.

Reading JSON costs a few microseconds an event, of which a client that keeps up with 50,000 a second has none to give.
Where an event differs from one that has been read in full only inside the string that holds the text, it says the
same but for that text: a token, and nothing else. Whatever differs more is read in full.
"""

import re

from cadenza.wire.dialect import Delta

# The text of a chat event, of its thinking, of a completion; with and without a blank, as serialisers differ.
_KEYS = tuple(
    f'"{name}":{blank}"'.encode()
    for name in ("content", "reasoning_content", "reasoning", "text")
    for blank in ("", " ")
)
# What a JSON string holds without an escape, and without ending: no control character, no quote, no backslash.
_plain = re.compile(rb"[ !#-\[\]-~\x80-\xff]+").fullmatch


class RepeatedToken:
    """Knows one event by what stands before and after its text. A new one for each response.

    is_reasoning   the learnt event's text, and so that of every event that matches it, is thinking
    """

    def __init__(self) -> None:
        self.is_reasoning = False
        self._before = b""
        self._after = b""
        self._begin = self._after_bytes = 0

    def learn(self, event: bytes, delta: Delta) -> None:
        """Keep `event`, as it came (`data: {…}`, blank line), which was read in full and is `delta.is_text_only`."""
        self._before = b""
        found = [key for key in _KEYS if key in event]
        if len(found) != 1 or event.count(found[0]) != 1:
            return  # several texts: which one carried the token is not for this shortcut to know
        begin = event.index(found[0]) + len(found[0])
        end = event.find(b'"', begin)
        # Of another size: this string is not what carried the tokens.
        if end - begin == delta.text_bytes and b"\\" not in event[begin:end]:
            self._before, self._after = event[:begin], event[end:]
            self._begin, self._after_bytes = begin, len(self._after)
            self.is_reasoning = delta.is_reasoning

    def text_bytes(self, event: bytes) -> int:
        """Size of the text if `event` is the learnt one with another text that needs no escape; 0 if it is not."""
        before = self._before
        if not (before and event.startswith(before) and event.endswith(self._after)):
            return 0
        begin, end = self._begin, len(event) - self._after_bytes
        if _plain(event, begin, end) is None or not (event.isascii() or _is_utf8(event)):
            return 0
        return end - begin


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
