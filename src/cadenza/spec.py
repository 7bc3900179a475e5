"""Settings are one frozen value: argv, a file or Python → `Spec` → manifest → the same run again.

A spec checks itself, whoever makes it: a value out of its range is a `SettingError` that names the field, the value and
the range. Secrets are a second value, `Credentials`, which is never written anywhere.
"""

import math
from collections.abc import Mapping
from typing import Any, Literal, get_args

import msgspec

from cadenza.errors import SettingError, UsageError, did_you_mean

Api = Literal["chat", "completions"]
APIS: tuple[str, ...] = get_args(Api)
CACHES = ("unique", "reuse")
# A law may have variants, written after a colon; which of them there are depends on the profile.
TIMINGS = ("calibrated", "physics", "measured")
WEEK_S = 604_800.0
# Measured where a spec names neither a server nor an engine.
DEFAULT_ENGINE = "mi50-rx6900xt"
# The environment variable that holds the API key.
KEY_VARIABLE = "CADENZA_API_KEY"


def _whole(field: str, value: Any, low: int, also: str = "") -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__") or value < low:
        raise SettingError(field, value, f"a whole number from {low} up{also}")
    return int(value)


def _number(field: str, value: Any, allowed: str, low: float, high: float = math.inf, *, above: bool = False) -> float:
    fits = not isinstance(value, bool) and hasattr(value, "__float__") and math.isfinite(value)
    if not fits or not low <= value <= high or (above and value == low):
        raise SettingError(field, value, allowed)
    return float(value)


def _one_of(field: str, value: Any, known: tuple[str, ...], shown: str | None = None) -> None:
    if value not in known:
        close = did_you_mean(str(value), known)
        raise SettingError(field, shown or value, f"one of {', '.join(known)}{close}")


def _texts(field: str, values: tuple[Any, ...]) -> None:
    for value in values:
        if not isinstance(value, str) or not value.strip():
            raise SettingError(field, value, "a text that is not empty")


def _switch(field: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise SettingError(field, value, "true or false")


class Timeouts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long, in seconds, each part of a request may take before it counts as failed. SettingError: not above 0.

    connect_s       to open the connection, TLS included
    first_token_s   from sending to the first token
    stall_s         between two tokens
    total_s         from sending to the end
    """

    connect_s: float = 10.0
    first_token_s: float = 120.0
    stall_s: float = 60.0
    total_s: float = 1800.0

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            _number(f"timeouts.{name}", getattr(self, name), "a time above 0 s", 0, above=True)


class Slo(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds on a request, in ms; None: no bound. A request is good if it meets all of them (`stats.goodput`).

    attainment   share of the requests that must be good, above 0 and at most 1; None: the share is reported, not judged

    SettingError: a bound that is not a finite number above 0, or an attainment out of its range or without a bound.
    """

    ttft_ms: float | None = None
    tpot_ms: float | None = None
    latency_ms: float | None = None
    attainment: float | None = None

    def __post_init__(self) -> None:
        bounds = {"ttft_ms": self.ttft_ms, "tpot_ms": self.tpot_ms, "latency_ms": self.latency_ms}
        for name, bound in bounds.items():
            if bound is not None:
                _number(f"slo.{name}", bound, "a finite number of milliseconds above 0", 0, above=True)
        if self.attainment is None:
            return
        _number("slo.attainment", self.attainment, "a share above 0 and at most 1", 0, 1, above=True)
        if all(bound is None for bound in bounds.values()):
            sentence = "slo.attainment needs a bound: set ttft_ms, tpot_ms or latency_ms"
            raise SettingError("slo.attainment", self.attainment, None, sentence)


class Telemetry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is sampled of the machine while points are measured. SettingError: an interval out of its range.

    interval_s    seconds between two samples of cards, host and engine, from 0.05 to 3600
    root          folder that stands for `/`: sys, proc and the kernel's log lie below it
    metrics_url   the engine's page of metrics; None: /metrics below each base URL
    off           nothing is sampled, and the engine's page is not requested
    """

    interval_s: float = 0.5
    root: str = "/"
    metrics_url: str | None = None
    off: bool = False

    def __post_init__(self) -> None:
        _number("telemetry.interval_s", self.interval_s, "a time from 0.05 s to 1 h", 0.05, 3600.0)
        _texts("telemetry.root", (self.root,))
        if self.metrics_url is not None:
            _texts("telemetry.metrics_url", (self.metrics_url,))
        _switch("telemetry.off", self.off)


class Spec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that decides what a run does, and nothing that is secret.

    urls            base URLs of one service, used in turn; empty: the embedded engine `engine`
    engine          profile of the embedded engine; speed: how many times faster than real time it runs
    virtual         it runs in this process and in virtual time: nothing waits, and no socket is opened
    timing          its timing law: calibrated | calibrated:D | physics | measured; None: calibrated, where it has that
    models          names as the server spells them; empty: what the server has
    concurrency     requests in flight, one point each; empty: open loop
    rates_per_s     arrivals per second, one point each; empty: closed loop. Both given: every pair, capped
    arrivals        poisson | constant | gamma:K   (K the shape; K = 1 is poisson, K < 1 burstier)
    requests        measured requests a point; auto: as many as its figures take (`measure.enough`), within its time;
                    None: auto against a real server, else 128 and at least twelve for each slot
    max_time_s      what all points together may take where requests are auto
    repeat          how often the whole grid is measured, in turn forwards and backwards
    duration_s      or as many as are due in this time, from the start of the point, warm-up included
    prompts         builtin | random:N | random:LO:HI | sharegpt:FILE | jsonl:FILE
    output_tokens   (low, high), both included, drawn per request; None: the dataset's, else 128 to 256
    warmup          unmeasured requests before each point; None: two for each slot, without slots three response times
    cooldown_s      how long measured requests are followed once the last was due, under the same load
    cache           unique: a salt makes every prompt new to the server's prefix cache; reuse: none
    ignore_eos      request exactly output_tokens where the server accepts that
    temperature     of sampling, from 0 up
    timeouts        when a part of a request counts as failed
    extra_body      fields merged into every request body
    headers         names of extra headers (their values are secret)
    slo             bounds that make a request good; None: no goodput. `cadenza show --slo` replaces them later
    workers         processes that put the load on; None: as many as it needs (`measure.workers`); virtual: always one
    verify_tls      False: accept any certificate
    telemetry       what is sampled of the machine meanwhile

    One value stands for a sequence of one: `concurrency=4`, `urls="http://localhost:8000"`, `output_tokens=64`.
    SettingError (a UsageError and a ValueError): a value out of its range, or two settings that exclude each other.

    >>> Spec(concurrency=[1, 2, 4]).concurrency
    (1, 2, 4)
    >>> Spec(concurrency=0)
    Traceback (most recent call last):
    cadenza.errors.SettingError: concurrency = 0 is not a whole number from 1 up
    """

    urls: tuple[str, ...] = ()
    engine: str | None = None
    speed: float = 1.0
    virtual: bool = False
    timing: str | None = None
    models: tuple[str, ...] = ()
    concurrency: tuple[int, ...] = (1, 2, 4, 8, 16)
    rates_per_s: tuple[float, ...] = ()
    arrivals: str = "poisson"
    requests: int | Literal["auto"] | None = None
    max_time_s: float = 900.0
    repeat: int = 1
    duration_s: float | None = None
    prompts: str = "builtin"
    output_tokens: tuple[int, int] | None = None
    api: Api = "chat"
    warmup: int | None = None
    cooldown_s: float = 60.0
    seed: int = 0
    cache: Literal["unique", "reuse"] = "unique"
    ignore_eos: bool = True
    temperature: float = 0.7
    timeouts: Timeouts = Timeouts()
    extra_body: dict[str, Any] = {}
    headers: tuple[str, ...] = ()
    verify_tls: bool = True
    slo: Slo | None = None
    workers: int | None = None
    telemetry: Telemetry = Telemetry()

    def __post_init__(self) -> None:
        for name in _SEQUENCES:
            msgspec.structs.force_setattr(self, name, _as_tuple(name, getattr(self, name)))
        self._check_load()
        self._check_requests()
        for name in ("urls", "models", "headers"):
            _texts(name, getattr(self, name))
        for name in ("arrivals", "prompts"):
            _texts(name, (getattr(self, name),))
        for name in ("virtual", "ignore_eos", "verify_tls"):
            _switch(name, getattr(self, name))
        for name in ("engine", "timing"):
            if getattr(self, name) is not None:
                _texts(name, (getattr(self, name),))
        for name, table in _TABLES.items():
            if not isinstance(value := getattr(self, name), table) and not (name == "slo" and value is None):
                raise SettingError(name, value, "a table of settings")
        _one_of("api", self.api, APIS)
        _one_of("cache", self.cache, CACHES)
        if self.timing is not None:
            _one_of("timing", self.timing.partition(":")[0], TIMINGS, self.timing)
        _number("speed", self.speed, "a number above 0", 0, above=True)
        _number("temperature", self.temperature, "a number from 0 up", 0)
        if not isinstance(self.extra_body, dict):
            raise SettingError("extra_body", self.extra_body, "a table of fields")
        self._check_exclusions()

    def _check_load(self) -> None:
        concurrency = tuple(_whole("concurrency", value, 1) for value in self.concurrency)
        rates = tuple(_number("rates_per_s", value, "a number above 0", 0, above=True) for value in self.rates_per_s)
        # A point measured twice would be two rows that cannot be distinguished.
        msgspec.structs.force_setattr(self, "concurrency", tuple(dict.fromkeys(concurrency)))
        msgspec.structs.force_setattr(self, "rates_per_s", tuple(dict.fromkeys(rates)))
        if not concurrency and not rates:
            raise SettingError("concurrency", (), None, "set {concurrency} or {rates_per_s}: both are empty")
        _whole("repeat", self.repeat, 1)
        if self.workers is not None:
            _whole("workers", self.workers, 1)

    def _check_requests(self) -> None:
        if self.requests is not None and self.requests != "auto":
            _whole("requests", self.requests, 1, ", nor auto")
        _number("max_time_s", self.max_time_s, "a time above 0 s and at most 7 days", 0, WEEK_S, above=True)
        _number("cooldown_s", self.cooldown_s, "a time from 0 s to 7 days", 0, WEEK_S)
        if self.duration_s is not None:
            _number("duration_s", self.duration_s, "a time above 0 s", 0, above=True)
        if self.warmup is not None:
            _whole("warmup", self.warmup, 0)
        _whole("seed", self.seed, 0)
        if self.output_tokens is None:
            return
        ends = [_whole("output_tokens", value, 1) for value in self.output_tokens]
        if len(ends) != 2 or ends[0] > ends[1]:
            shown = ":".join(map(str, self.output_tokens))
            raise SettingError("output_tokens", shown, "LO:HI, 1 <= LO <= HI", "{subject}: LO must be from 1 to HI")

    def _check_exclusions(self) -> None:
        for field, applies, sentence in (
            (
                "requests",
                self.requests == "auto" and self.duration_s is not None,
                "{requests} auto and {duration_s} exclude each other: {max_time_s} bounds the first",
            ),
            (
                "engine",
                self.urls and self.engine,
                "{urls} and {engine} exclude each other: measure your server, or the embedded engine",
            ),
            (
                "speed",
                self.urls and self.speed != 1,
                "{speed} is for the embedded engine: a real server runs at its own",
            ),
            (
                "virtual",
                self.urls and self.virtual,
                "{virtual} is for the embedded engine: a real server needs real time",
            ),
            (
                "timing",
                self.urls and self.timing is not None,
                "{timing} is for the embedded engine: a real server has a timing of its own",
            ),
            (
                "virtual",
                self.virtual and self.speed != 1,
                "{virtual} and {speed} exclude each other: virtual time goes as fast as it can",
            ),
        ):
            if applies:
                raise SettingError(field, getattr(self, field), None, sentence)


_SEQUENCES = ("urls", "models", "concurrency", "rates_per_s", "output_tokens", "headers")
_TABLES = {"timeouts": Timeouts, "slo": Slo, "telemetry": Telemetry}


def _as_tuple(name: str, value: Any) -> Any:
    """One value as a sequence of one; of output tokens, both ends of the range."""
    if value is None:
        return value
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return (value, value) if name == "output_tokens" else (value,)
    return tuple(value)


def make_spec(settings: Mapping[str, Any]) -> Spec:
    """The spec with these fields, as a TOML file or a dict has them: the nested values may be dicts.

    UsageError: an unknown name, with the closest known one. SettingError: as `Spec`.

    >>> make_spec({"concurency": [1]})
    Traceback (most recent call last):
    cadenza.errors.UsageError: unknown setting 'concurency' (did you mean 'concurrency'?)
    """
    tables = [("", settings, Spec.__struct_fields__)]
    for name, table in _TABLES.items():
        if isinstance(value := settings.get(name), Mapping):
            tables.append((f"{name}.", value, table.__struct_fields__))
    for prefix, given, known in tables:
        for name in given:
            if name not in known:
                close = did_you_mean(str(name), known)
                raise UsageError(f"unknown setting {prefix + str(name)!r}{close}")
    fields = dict(settings)
    for name, table in _TABLES.items():
        if isinstance(value := fields.get(name), Mapping):
            fields[name] = table(**value)
    return Spec(**fields)


class Credentials:
    """API key and header values: kept out of the spec, the manifest, logs and error messages.

    api_key   sent as `Authorization: Bearer …`; None: no such header
    headers   (name, value) of each further header

    >>> Credentials("s3cret")
    Credentials(…)
    """

    def __init__(self, api_key: str | None = None, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self.api_key = api_key
        self.headers = headers

    def __repr__(self) -> str:
        return "Credentials(…)"

    def as_headers(self) -> tuple[tuple[str, str], ...]:
        """Header lines to send with every request."""
        bearer = (("Authorization", f"Bearer {self.api_key}"),) if self.api_key else ()
        return bearer + self.headers
