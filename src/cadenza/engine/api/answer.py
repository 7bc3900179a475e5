"""What the engine says: stream chunks and whole bodies, field for field and in the order vLLM 0.32 writes them."""

import json
from collections.abc import Iterable

from cadenza import __version__
from cadenza.engine.api.completion_request import CompletionRequest
from cadenza.engine.api.http import END, chunk, json_bytes
from cadenza.engine.api.text import WORDS, word
from cadenza.engine.profile import Profile

FINGERPRINT = f"cadenza-{__version__}-simulated"
_DONE = b"data: [DONE]\n\n"
_FINGERPRINT_END = f',"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()
_PERIOD = len(WORDS)


class CompletionResponse:
    """One request's answer in the making, from its `number` (counted from 1) and `created` (seconds since 1970).

    cached_tokens   prompt tokens that the prefix cache spared, for usage; set it before the last token
    created_tokens  prompt tokens that were written to the cache, likewise
    """

    def __init__(self, request: CompletionRequest, number: int, created: int, chunked: bool = True) -> None:
        self.request = request
        self.cached_tokens = 0
        self.created_tokens = 0
        self._number = number
        self._chunked = chunked
        self._id = f"{'chatcmpl' if request.chat else 'cmpl'}-{number:016x}"
        self._created = created
        shape = "chat.completion.chunk" if request.chat else "text_completion"
        origin = f'"id":"{self._id}","object":"{shape}","created":{created},"model":{json.dumps(request.model)}'
        self._opening = f'data: {{{origin},"choices":['.encode()
        self._before = self._opening + (b'{"index":0,"delta":{"content":"' if request.chat else b'{"index":0,"text":"')
        closing = b'"},"logprobs":null,"finish_reason":' if request.chat else b'","logprobs":null,"finish_reason":'
        stop = b',"stop_reason":null'
        ids = b',"token_ids":null}]' if request.chat else b',"prompt_token_ids":null,"token_ids":null}]'
        self._after = closing + b"null" + (b"" if request.chat else stop) + ids
        self._after_last = closing + b'"length"' + stop + ids
        # Between the first token and the last, events of the same one word are the same bytes: made once, sent often.
        self._last = request.output_tokens
        self._repeats = not request.continuous_usage
        self._thought = request.reasoning_tokens
        self._events: list[bytes | None] = [None] * (2 * _PERIOD)

    def tokens(self, n: int, count: int = 1) -> bytes:
        """The event of tokens n − count + 1 … n; with the first goes the role, with the last all that ends a stream."""
        if count == 1 and self._repeats and 1 < n < self._last:
            at = (self._number + n) % _PERIOD + (_PERIOD if n <= self._thought else 0)
            event = self._events[at]
            if event is None:
                event = self._events[at] = self._event(n, 1)
            return event
        role = self._role() if n == count and self.request.chat else b""
        return role + (self._ending(n, count) if n == self._last else self._event(n, count))

    def broken_event(self) -> bytes:
        """An event whose JSON stops in the middle of its id."""
        return self._frame(self._opening[: len(b'data: {"id":"') + len(self._id) // 2] + b"\n\n")

    def error(self, body: bytes) -> bytes:
        """A stream's end after a failure: the error object `body`, then what ends any stream."""
        return self._frame(b"data: " + body + b"\n\n") + self._frame(_DONE) + self.cut()

    def cut(self) -> bytes:
        """A stream's end as HTTP sees it, and nothing more."""
        return END if self._chunked else b""

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        request = self.request
        words = [word(self._number, n) for n in range(1, request.output_tokens + 1)]
        reasoning, content = "".join(words[: request.reasoning_tokens]), "".join(words[request.reasoning_tokens :])
        choice: dict[str, object] = {"index": 0}
        ending = {"logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": None}
        if request.chat:
            choice["message"] = {
                "role": "assistant",
                "content": content,
                **dict.fromkeys(("refusal", "annotations", "audio", "function_call")),
                "reasoning": reasoning or None,
            }
            choice |= ending | {"routed_experts": None}
        else:
            choice["text"] = content
            choice |= ending | dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "routed_experts"))
        spared: dict[str, object] | None = None
        if request.prompt_details:
            created = self.created_tokens if request.chat else None
            spared = {"cached_tokens": self.cached_tokens, "created_cache_tokens": created, "multimodal_tokens": None}
        body: dict[str, object] = {
            "id": self._id,
            "object": "chat.completion" if request.chat else "text_completion",
            "created": self._created,
            "model": request.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**self._counts(request.output_tokens), "prompt_tokens_details": spared, **self._details()},
        }
        if request.chat:
            body |= dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
        return json_bytes(body | dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics")))

    def _role(self) -> bytes:
        role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = self._running_usage(0) if self.request.continuous_usage else b""
        return self._frame(self._opening + role + usage + b',"prompt_token_ids":null,"prompt_text":null}\n\n')

    def _event(self, n: int, count: int) -> bytes:
        usage = self._running_usage(n) if self.request.continuous_usage else b""
        return self._frame(b"%b%b%b}\n\n" % (self._begun(n, count), self._after, usage))

    def _begun(self, n: int, count: int) -> bytes:
        """An event up to the end of its text: thinking and answer each in their field, where it has of both."""
        thought = min(max(self.request.reasoning_tokens - n + count, 0), count)
        content = "".join(word(self._number, at) for at in range(n - count + thought + 1, n + 1)).encode()
        if not thought:
            return self._before + content
        thinking = "".join(word(self._number, at) for at in range(n - count + 1, n - count + thought + 1)).encode()
        if thought == count:
            return self._opening + b'{"index":0,"delta":{"reasoning":"' + thinking
        return self._before + content + b'","reasoning":"' + thinking

    def _ending(self, n: int, count: int) -> bytes:
        request = self.request
        begun = self._begun(n, count)
        if not request.include_usage:
            return self._frame(begun + self._after_last + _FINGERPRINT_END) + self._frame(_DONE) + self.cut()
        usage = self._running_usage(n) if request.continuous_usage else b""
        last = self._frame(begun + self._after_last + usage + b"}\n\n")
        counts = self._counts(n)
        if request.prompt_details:
            cache = {"cached_tokens": self.cached_tokens}
            counts["prompt_tokens_details"] = cache | (
                {"created_cache_tokens": self.created_tokens} if request.chat else {}
            )
        if request.reasons:
            counts |= self._details()
        final = self._frame(self._opening + b'],"usage":' + json_bytes(counts) + _FINGERPRINT_END)
        return last + final + self._frame(_DONE) + self.cut()

    def _running_usage(self, n: int) -> bytes:
        details = self._details(n) if self.request.chat else {}
        return b',"usage":' + json_bytes(self._counts(n) | details)

    def _counts(self, n: int) -> dict[str, object]:
        prompt = self.request.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + n, "completion_tokens": n}

    def _details(self, n: int | None = None) -> dict[str, object]:
        reasoning = self.request.reasoning_tokens if n is None else min(n, self.request.reasoning_tokens)
        return {"completion_tokens_details": {"reasoning_tokens": reasoning} if self.request.reasons else None}

    def _frame(self, event: bytes) -> bytes:
        return chunk(event) if self._chunked else event


def models_body(profile: Profile, created: int) -> bytes:
    """The body of /v1/models."""
    return json_bytes({"object": "list", "data": list(_cards(profile, created))})


def _cards(profile: Profile, created: int) -> Iterable[dict[str, object]]:
    for at, model in enumerate(profile.models, 1):
        permission = {
            "id": f"modelperm-{at:016x}",
            "object": "model_permission",
            "created": created,
            "allow_create_engine": False,
            "allow_sampling": True,
            "allow_logprobs": False,
            "allow_search_indices": False,
            "allow_view": True,
            "allow_fine_tuning": False,
            "organization": "*",
            "group": None,
            "is_blocking": False,
        }
        yield {
            "id": model.name,
            "object": "model",
            "created": created,
            "owned_by": "cadenza (simulated)",
            "root": model.name,
            "parent": None,
            "max_model_len": profile.max_model_len,
            "permission": [permission],
        }
