"""What the engine says: stream chunks and whole bodies, field for field and in the order vLLM 0.32 writes them."""

import json
from collections.abc import Iterable

from cadenza import __version__
from cadenza.engine.ask import Ask
from cadenza.engine.http import END, chunk, json_bytes
from cadenza.engine.profile import Profile
from cadenza.engine.text import word

FINGERPRINT = f"cadenza-{__version__}-simulated"
_DONE = b"data: [DONE]\n\n"


class Answer:
    """One request's answer in the making, from its `number` (counted from 1) and `created` (seconds since 1970)."""

    def __init__(self, ask: Ask, number: int, created: int, chunked: bool = True) -> None:
        self.ask = ask
        self._number = number
        self._chunked = chunked
        self._id = f"{'chatcmpl' if ask.chat else 'cmpl'}-{number:016x}"
        self._created = created
        shape = "chat.completion.chunk" if ask.chat else "text_completion"
        origin = f'"id":"{self._id}","object":"{shape}","created":{created},"model":{json.dumps(ask.model)}'
        self._opening = f'data: {{{origin},"choices":['.encode()
        self._before = self._opening + (b'{"index":0,"delta":{"content":"' if ask.chat else b'{"index":0,"text":"')
        self._before_reasoning = self._opening + b'{"index":0,"delta":{"reasoning":"'
        closing = b'"},"logprobs":null,"finish_reason":' if ask.chat else b'","logprobs":null,"finish_reason":'
        stop = b',"stop_reason":null'
        ids = b',"token_ids":null}]' if ask.chat else b',"prompt_token_ids":null,"token_ids":null}]'
        self._after = closing + b"null" + (b"" if ask.chat else stop) + ids
        self._after_last = closing + b'"length"' + stop + ids

    def token(self, n: int) -> bytes:
        """The bytes that carry the `n`-th token; with the first goes the role, with the last all that ends a stream."""
        ask = self.ask
        said = word(self._number, n).encode()
        before = self._before_reasoning if n <= ask.reasoning_tokens else self._before
        if n == ask.output_tokens:
            return self._first(n) + self._ending(before + said)
        if ask.continuous_usage:
            event = b"%b%b%b%b}\n\n" % (before, said, self._after, self._running_usage(n))
        else:
            event = b"%b%b%b}\n\n" % (before, said, self._after)
        framed = chunk(event) if self._chunked else event
        return self._first(n) + framed if n == 1 else framed

    def whole(self) -> bytes:
        """The body of an answer that is not streamed."""
        ask = self.ask
        words = [word(self._number, n) for n in range(1, ask.output_tokens + 1)]
        reasoning, content = "".join(words[: ask.reasoning_tokens]), "".join(words[ask.reasoning_tokens :])
        choice: dict[str, object] = {"index": 0}
        ending = {"logprobs": None, "finish_reason": "length", "stop_reason": None, "token_ids": None}
        if ask.chat:
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
        body: dict[str, object] = {
            "id": self._id,
            "object": "chat.completion" if ask.chat else "text_completion",
            "created": self._created,
            "model": ask.model,
            "choices": [choice],
            "service_tier": None,
            "system_fingerprint": FINGERPRINT,
            "usage": {**self._counts(ask.output_tokens), "prompt_tokens_details": None, **self._details()},
        }
        if ask.chat:
            body |= dict.fromkeys(("prompt_logprobs", "prompt_token_ids", "prompt_text"))
        return json_bytes(body | dict.fromkeys(("kv_transfer_params", "ec_transfer_params", "metrics")))

    def _first(self, n: int) -> bytes:
        if n > 1 or not self.ask.chat:
            return b""
        role = b'{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]'
        usage = self._running_usage(0) if self.ask.continuous_usage else b""
        return self._frame(self._opening + role + usage + b',"prompt_token_ids":null,"prompt_text":null}\n\n')

    def _ending(self, begun: bytes) -> bytes:
        ask = self.ask
        fingerprint = f',"system_fingerprint":"{FINGERPRINT}"}}\n\n'.encode()
        if not ask.include_usage:
            return self._frame(begun + self._after_last + fingerprint) + self._frame(_DONE) + self._end()
        usage = self._running_usage(ask.output_tokens) if ask.continuous_usage else b""
        last = self._frame(begun + self._after_last + usage + b"}\n\n")
        counts = self._counts(ask.output_tokens) | (self._details() if ask.reasons else {})
        final = self._frame(self._opening + b'],"usage":' + json_bytes(counts) + fingerprint)
        return last + final + self._frame(_DONE) + self._end()

    def _running_usage(self, n: int) -> bytes:
        details = self._details(n) if self.ask.chat else {}
        return b',"usage":' + json_bytes(self._counts(n) | details)

    def _counts(self, n: int) -> dict[str, object]:
        prompt = self.ask.prompt_tokens
        return {"prompt_tokens": prompt, "total_tokens": prompt + n, "completion_tokens": n}

    def _details(self, n: int | None = None) -> dict[str, object]:
        reasoning = self.ask.reasoning_tokens if n is None else min(n, self.ask.reasoning_tokens)
        return {"completion_tokens_details": {"reasoning_tokens": reasoning} if self.ask.reasons else None}

    def _frame(self, event: bytes) -> bytes:
        return chunk(event) if self._chunked else event

    def _end(self) -> bytes:
        return END if self._chunked else b""


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
