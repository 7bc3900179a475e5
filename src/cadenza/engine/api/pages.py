"""The server's pages besides the completions, and its answers to wrong paths and methods, as vLLM 0.32 gives them."""

import json
from collections.abc import Callable
from typing import NamedTuple

from cadenza import __version__
from cadenza.engine.api.answer import models_body
from cadenza.engine.api.completion_request import conversation_ids, read_messages, served
from cadenza.engine.api.fields import Fields, JsonObject, RefusalError, bad, parse_body
from cadenza.engine.api.http import Call, bodiless, json_bytes, whole
from cadenza.engine.api.http_counts import HttpCounts
from cadenza.engine.api.text import Vocabulary, encode
from cadenza.engine.core.core import Core
from cadenza.engine.profile import Profile

COMPLETIONS = {"/v1/chat/completions": True, "/v1/completions": False}
_TEXT = "text/plain; version={}; charset=utf-8"
_OPENMETRICS = "application/openmetrics-text"
_UNCOUNTED = {"/metrics", "/health", "/load", "/ping", "/version", "/server_info"}
_DETAIL = {404: json_bytes({"detail": "Not Found"}), 405: json_bytes({"detail": "Method Not Allowed"})}


class _Page(NamedTuple):
    """Methods it answers, the first named where another is tried; `body` None: a completion, answered elsewhere."""

    methods: tuple[str, ...]
    body: Callable[[Call], bytes] | None


class Pages:
    """All that is answered at once. `load` counts the completions under way.

    compat_metrics   /metrics under names of older releases, too
    log_stats        /metrics with the engine's own families; without: as of vLLM with --disable-log-stats
    """

    def __init__(
        self,
        profile: Profile,
        core: Core,
        load: Callable[[], int],
        epoch_s: int = 0,
        compat_metrics: bool = False,
        log_stats: bool = True,
    ) -> None:
        self.counts = HttpCounts()
        self._profile = profile
        self._core = core
        self._compat_metrics = compat_metrics
        self._log_stats = log_stats
        self._vocabulary = Vocabulary()
        get, post = ("GET",), ("POST",)
        self._pages = {path: _Page(post, None) for path in COMPLETIONS} | {
            "/health": _Page(get, lambda _: b""),
            "/ping": _Page(("GET", "POST"), lambda _: b""),
            "/version": _Page(get, lambda _: json_bytes({"version": f"cadenza-{__version__} (simulated)"})),
            "/v1/models": _Page(get, lambda _: models_body(profile, epoch_s)),
            "/load": _Page(get, lambda _: json_bytes({"server_load": load()})),
            "/tokenize": _Page(post, self._tokenize),
            "/detokenize": _Page(post, self._detokenize),
            "/reset_prefix_cache": _Page(post, lambda _: json_bytes({"success": core.reset_prefix_cache()})),
            "/server_info": _Page(get, self._server_info),
            "/is_sleeping": _Page(get, lambda _: json_bytes({"is_sleeping": False})),
        }

    def route(self, call: Call) -> str:
        """What counts of answers call a path; "none" where nothing is."""
        if call.path.startswith("/metrics"):
            return "/metrics"
        return call.path if call.path in self._pages else "none"

    def count(self, route: str, method: str, status: int, duration_ns: int) -> None:
        """Count an answer for /metrics, unless it is of a page that is asked for all the time."""
        if route not in _UNCOUNTED:
            self.counts.answered(route, method, status, duration_ns)

    def answer(self, call: Call, now_ns: int) -> bytes | None:
        """The answer to a call, without its body for HEAD; None where it is for a completion, by the right method."""
        page = self._pages.get(call.path)
        if page is not None and page.body is None and call.method in page.methods:
            return None
        try:
            output = self._answer(call, page, now_ns)
        except RefusalError as refusal:
            output = whole(refusal.status, refusal.body, keep_alive=call.keep_alive)
        return bodiless(output) if call.method == "HEAD" else output

    def _answer(self, call: Call, page: _Page | None, now_ns: int) -> bytes:
        keep_alive = call.keep_alive
        if call.path.startswith("/metrics"):
            kind, is_open = _metrics_type(call)
            return whole(200, self._metrics(now_ns, is_open), kind, keep_alive)
        if page is None:
            if call.path.endswith("/") and call.path[:-1] in self._pages:
                return _redirect(call)
            return whole(404, _DETAIL[404], keep_alive=keep_alive)
        if page.body is None or call.method not in page.methods:
            allow = b"allow: %b\r\n" % page.methods[0].encode()
            return whole(405, _DETAIL[405], keep_alive=keep_alive, extra=allow)
        return whole(200, page.body(call), keep_alive=keep_alive)

    def _metrics(self, now_ns: int, openmetrics: bool) -> bytes:
        from cadenza.engine.api.exposition import render  # 60 ms of prometheus_client, on the first request only

        pairs = self._core.read(now_ns)
        return render(pairs if self._log_stats else [], self._compat_metrics, openmetrics, self.counts)

    def _tokenize(self, call: Call) -> bytes:
        """The token ids of a prompt, or of a chat's messages."""
        fields = Fields(parse_body(call.headers.get("content-type", ""), call.body))
        if fields.body.get("continue_final_message") and fields.body.get("add_generation_prompt"):
            bad("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        model = fields.text("model")
        strings, opens = fields.flag("return_token_strs"), fields.flag("add_generation_prompt", default=True)
        prompt = fields.text("prompt")
        messages = read_messages(fields) if prompt is None else None
        served(self._profile, model)
        ids = encode(prompt or "") if messages is None else conversation_ids(messages, opens)
        self._vocabulary.learn([prompt or ""] if messages is None else [text for pair in messages for text in pair])
        length = {"count": len(ids), "max_model_len": self._profile.max_model_len}
        pieces = self._vocabulary.pieces(ids) if strings else None
        return json_bytes(length | {"tokens": ids, "token_strs": pieces})

    def _detokenize(self, call: Call) -> bytes:
        fields = Fields(parse_body(call.headers.get("content-type", ""), call.body))
        model = fields.text("model")
        tokens = fields.body.get("tokens")
        ids: list[int] = []
        if not isinstance(tokens, list):
            raise fields.wrong("tokens", "a list of token ids")
        for at, token in enumerate(tokens):
            number = fields.as_integer(f"tokens.{at}", token)
            if number is None or number < 0:
                raise fields.wrong(f"tokens.{at}", "an integer from 0 up")
            ids.append(number)
        served(self._profile, model)
        return json_bytes({"prompt": self._vocabulary.decode(ids)})

    def _server_info(self, call: Call) -> bytes:
        """The profile in the place of vLLM's configuration, as text or, with ?config_format=json, as an object."""
        profile = self._profile
        limits = {name: getattr(profile.limits, name) for name in profile.limits.__struct_fields__}
        config: JsonObject = {"simulated": True, "profile": profile.name, "hardware": profile.hardware, **limits}
        config["models"] = [model.name for model in profile.models]
        text: object = config if "config_format=json" in call.query.split("&") else json.dumps(config)
        return json_bytes({"vllm_config": text, "vllm_env": {}, "system_env": {}})


def _metrics_type(call: Call) -> tuple[str, bool]:
    """(content type, whether it is OpenMetrics).

    vLLM's route takes the exact path by GET, and no notice of what the client accepts; any other method or longer
    path reaches the exporter behind it, which does.
    """
    if call.path == "/metrics" and call.method == "GET":
        return _TEXT.format("1.0.0"), False
    if _OPENMETRICS in call.headers.get("accept", ""):
        return f"{_OPENMETRICS}; version=1.0.0; charset=utf-8", True
    return _TEXT.format("0.0.4"), False


def _redirect(call: Call) -> bytes:
    """To the path without its last slash, on the host that the client named."""
    query = f"?{call.query}" if call.query else ""
    there = f"http://{call.headers.get('host', 'localhost')}{call.path[:-1]}{query}".encode("latin-1")
    return whole(307, b"", keep_alive=call.keep_alive, extra=b"location: %b\r\n" % there)
