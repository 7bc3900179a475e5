"""The codes of findings: what each means, its numbers, and what to do. docs/reference/findings.md is made from them."""

from typing import NamedTuple

from cadenza.domain import FIGURES


class Code(NamedTuple):
    """check: its name in `cadenza check`, empty for a note. numbers: names that it may have. action: what to do."""

    check: str
    meaning: str
    numbers: tuple[str, ...] = ()
    action: str = ""


_REPORT = "Report it as a bug, with the run directory."
_LONGER = "Measure longer: more --requests, or --requests auto."
_FEWER = "Use fewer streams, more --workers, or another machine for the client."
_FIT = "Fit the profile again at this load, or measure inside its domain."

CODES: dict[str, Code] = {
    "conservation": Code(
        "conservation",
        "Requests planned = sent + dropped, and each sent one has an outcome.",
        ("planned", "sent", "dropped", "with_outcome"),
        _REPORT,
    ),
    "point-failed": Code("complete", "The measurement ended with an error.", (), "Read the error; run it again."),
    "point-interrupted": Code(
        "complete", "The point was interrupted.", ("ended", "planned"), "Figures are of the requests that ended."
    ),
    "no-success": Code("failures", "No request succeeded.", ("failed",), "Read the server's words in the failures."),
    "failures": Code(
        "failures",
        "Requests that failed, of all that were not cancelled; above 5 % INVALID.",
        ("failed", "judged", "failed_share"),
        "Read the server's words in the failures; lower the load.",
    ),
    "duplicate-records": Code("records", "Each request has one record.", ("duplicates",), _REPORT),
    "littles-law": Code(
        "Little's law",
        "Mean requests in flight = rate x mean latency, within the standard error.",
        ("residual_share", "allowed_share"),
        _LONGER,
    ),
    "stamp-order": Code(
        "order of stamps", "No stamp lies before its cause.", ("early_stamps",), "Check the machine's clock."
    ),
    "gap-sum": Code("gaps", "Latency less TTFT is the sum of the gaps.", ("latency_less_ttft_ms", "gaps_ms"), _REPORT),
    "no-usage": Code("tokens", "The server gave no usage: tokens are counted as events."),
    "token-count": Code("tokens", "The server's token count against the events.", ("tokens", "events")),
    "more-events-than-tokens": Code(
        "tokens",
        "Answers in which more events carried text than the server counted tokens.",
        ("answers", "events", "tokens"),
        "Do not trust the server's usage; compare with a tokenizer.",
    ),
    "prompt-length": Code(
        "prompt length",
        "Mean prompt length by the server against the length aimed at; off by more than 20 % is SUSPECT.",
        ("prompt_tok", "aimed_tok"),
        "A chat template or another tokenizer adds tokens; aim at fewer, or name the true length.",
    ),
    "dispatch-lag": Code("dispatch lag", "How late the client sent requests.", ("lag_ms", "allowed_ms"), _FEWER),
    "empty-slots": Code(
        "empty slots", "Share of time in which a slot of a closed loop was empty.", ("share", "allowed_share"), _FEWER
    ),
    "dispatch-rate": Code(
        "rate",
        "Rate at which requests were sent against the rate at which they were due.",
        ("achieved_per_s", "offered_per_s"),
        _FEWER,
    ),
    "kernel-stamps": Code(
        "stamps",
        "Answers whose stamps are the kernel's.",
        ("without", "answers"),
        "On Linux the kernel stamps packets; elsewhere a busy client adds its lateness.",
    ),
    "read-lag": Code(
        "read lag",
        "Time from a packet's arrival to its read, against the gap between tokens.",
        ("lag_ms", "gap_ms", "shared_stamp_share"),
        _FEWER,
    ),
    "worker-cpu": Code(
        "worker CPU", "CPU time of a worker over wall time.", ("worker", "share", "allowed_share"), _FEWER
    ),
    "loop-lag": Code("loop lag", "Longest time between two polls of a worker.", ("worker", "longest_ms")),
    "shared-core": Code(
        "core",
        "Share of time for which a worker waited for a core.",
        ("worker", "share", "allowed_share"),
        "Stop what else runs on the client's machine.",
    ),
    "clock-steps": Code(
        "clock",
        "Steps of the calendar clock, which kernel stamps are of.",
        ("worker", "steps"),
        "Let the clock be slewed, not stepped, while measuring.",
    ),
    "client-ceiling": Code(
        "ceiling",
        "Events a second against what the calibrated client can read.",
        ("events_per_s", "ceiling_events_per_s", "share"),
        _FEWER,
    ),
    "window": Code("window", "How long the load was held.", ("window_s",)),
    "no-window": Code("window", "There is no stretch in which the load was held.", (), _LONGER),
    "steady-state": Code(
        "steady state",
        "TPOT and TTFT do not change in the order of dispatch.",
        ("before_ms", "after_ms", "change_share"),
        "Find what changed: another user, heat, a filling cache; measure again.",
    ),
    "silence": Code(
        "silence",
        "Longest time without an event while requests were in flight.",
        ("silent_s", "silent_share"),
        "Look at the server's log at that time.",
    ),
    "censored": Code(
        "followed",
        "Measured requests that had not ended when the load did; figures they could move are bounds.",
        ("censored", "measured"),
        "Give a longer --cooldown, or a lower load.",
    ),
    "followed": Code("followed", "All measured requests were followed to their end.", ("measured",)),
    "load-not-held": Code(
        "followed",
        "The load fell before the last measured request had ended.",
        ("difference_ms",),
        "Measure again: runs of this version hold the load.",
    ),
    "backlog-grows": Code(
        "stability",
        "More requests arrive than the server completes: no latency is its own.",
        ("arriving_per_s", "completed_per_s", "window_responses"),
        "Lower the rate below what it completes.",
    ),
    "window-short": Code(
        "stability",
        "The window is too short to see whether the backlog grows.",
        ("arriving_per_s", "completed_per_s", "window_responses", "needed_responses"),
        _LONGER,
    ),
    "backlog-stable": Code(
        "stability",
        "The backlog does not grow.",
        ("arriving_per_s", "window_responses"),
    ),
    "lockstep": Code(
        "lockstep",
        "Concentration of dispatch times within a round: 0 even, 1 all at once.",
        ("concentration", "slots", "allowed"),
        "Draw --output-tokens from a range.",
    ),
    "in-flight": Code(
        "in flight", "Requests in flight against the number asked for.", ("peak", "mean", "slots"), _FEWER
    ),
    "answer-text": Code(
        "text", "Answers that carried no text.", ("empty", "answers"), "Read a record's answer; try --api completions."
    ),
    "buffered-stream": Code(
        "streaming",
        "Answers that came in few pieces: TTFT, TPOT and ITL are a buffer's.",
        ("lumped", "answers", "pieces", "events"),
        "Turn buffering off in the proxy (nginx: proxy_buffering off).",
    ),
    "hidden-tokens": Code(
        "streamed tokens",
        "Answers with more tokens counted than streamed.",
        ("answers", "text_bytes", "tokens"),
        "Hidden reasoning: their TPOT cannot be known.",
    ),
    "extrapolated-rate": Code(
        "extrapolation",
        "The rate lies outside of the profile's.",
        ("rate_per_s", "lowest_rate_per_s", "highest_rate_per_s"),
        _FIT,
    ),
    "extrapolated-load-above": Code(
        "extrapolation",
        "More in flight than the profile was measured with.",
        ("in_system", "lowest_in_system", "highest_in_system"),
        _FIT,
    ),
    "extrapolated-load-below": Code(
        "extrapolation",
        "Fewer in flight than the profile was measured with.",
        ("in_system", "lowest_in_system", "highest_in_system"),
        _FIT,
    ),
    "extrapolated-peak-above": Code(
        "extrapolation",
        "Tokens made with more in flight than the profile's peak.",
        ("peak_in_flight", "measured_peak_in_flight", "share"),
        _FIT,
    ),
    "extrapolated-prompt-mean": Code(
        "extrapolation",
        "Mean prompt length outside of the profile's.",
        ("mean_tok", "lowest_mean_tok", "highest_mean_tok"),
        _FIT,
    ),
    "extrapolated-prompt-range": Code(
        "extrapolation",
        "Prompt lengths outside of the profile's.",
        ("p5_tok", "p95_tok", "shortest_tok", "longest_tok"),
        _FIT,
    ),
    "extrapolated-output-mean": Code(
        "extrapolation",
        "Mean output length outside of the profile's.",
        ("mean_tok", "lowest_mean_tok", "highest_mean_tok"),
        _FIT,
    ),
    "extrapolated-output-range": Code(
        "extrapolation",
        "Output lengths outside of the profile's.",
        ("p5_tok", "p95_tok", "shortest_tok", "longest_tok"),
        _FIT,
    ),
    "extrapolated-loop": Code("extrapolation", "Another kind of load than the profile's.", (), _FIT),
    "extrapolated-arrivals": Code("extrapolation", "Another arrival law than the profile's.", (), _FIT),
    "domain-unrecorded": Code("extrapolation", "The profile does not record its domain.", (), "Run cadenza fit again."),
    "inside-domain": Code("extrapolation", "Load and lengths lie inside the profile's domain."),
    "engine-restarted": Code(
        "server's count", "The engine's counters fell: it was restarted.", (), "Measure the point again."
    ),
    "server-requests": Code(
        "server's requests",
        "Requests by the server's counters and by the client.",
        ("server", "client", "client_most", "difference_share"),
        "Make sure that nobody else uses the server.",
    ),
    "server-prompt-tokens": Code(
        "server's prompt tokens",
        "Prompt tokens by the server's counters and by the client.",
        ("server", "client", "client_most", "difference_share"),
        "Make sure that nobody else uses the server.",
    ),
    "server-generation-tokens": Code(
        "server's generation tokens",
        "Generated tokens by the server's counters and by the client.",
        ("server", "client", "client_most", "difference_share"),
        "Make sure that nobody else uses the server.",
    ),
    "engine-ttft": Code(
        "engine's TTFT",
        "Mean TTFT at the client and by the engine's histogram.",
        ("client_ms", "server_ms", "beyond_ms"),
        "A large difference is network, proxy, HTTP or client.",
    ),
    "engine-itl": Code(
        "engine's ITL",
        "Mean ITL at the client and by the engine's histogram.",
        ("client_ms", "server_ms", "beyond_ms"),
        "A large difference is network, proxy, HTTP or client.",
    ),
    "over-cap": Code(
        "",
        "A capped load that cannot keep up: user TTFT grows with the run.",
        ("achieved_per_s", "offered_per_s"),
        "Raise -c or lower --rate.",
    ),
    "wait-before-dispatch": Code(
        "", "User TTFT differs from TTFT by the wait to be sent.", ("user_mean_ms", "dispatch_mean_ms")
    ),
    "tokens-per-event": Code("", "Events carry several tokens: ITL is per event.", ("tokens_per_event",)),
    "answer-remark": Code("", "A remark that several answers share.", ("answers",)),
    "tokens-not-streamed": Code("", "Tokens that were counted and never streamed.", ("unstreamed", "tokens")),
    "first-stamp-tokens": Code("", "Tokens that came with the first stamp.", ("tokens",)),
    "tpot-unknown": Code(
        "",
        "Answers without TPOT: the tokens of their first event are not known.",
        ("answers", "of_answers", "lowest_ms", "highest_ms"),
    ),
    "profile-percentiles-unknown": Code("", "No out-of-sample error is recorded.", (), "Run cadenza fit again."),
    "profile-errors": Code(
        "",
        "Figures that the profile gives with a large error, each with its largest one.",
        tuple(f"{figure}_pct" for figure in FIGURES),
        _FIT,
    ),
    "profile-interpolated": Code(
        "", "The load lies between rows of the profile.", ("lowest_in_system", "highest_in_system")
    ),
    "tpot-falls": Code(
        "",
        "TPOT is lower than at the base concurrency, which a larger batch cannot do.",
        ("drift_pct",),
        "Look for lumps (a gateway), a cold start at the base, or speculative decoding.",
    ),
    "client-limited": Code("", "Bottleneck: a check found the client to be the limit.", (), _FEWER),
    "thermal-throttle": Code(
        "", "Bottleneck: a card reduced its clock for heat.", ("share",), "Cool it, or cap its power."
    ),
    "preemptions": Code("", "Bottleneck: requests lost their KV cache.", ("per_request",), "Lower max_num_seqs."),
    "kv-cache": Code("", "Bottleneck: how full the KV cache was at most.", ("peak_share",)),
    "waiting": Code("", "Bottleneck: share of samples with waiting requests.", ("share",)),
    "time-in-queue": Code("", "Bottleneck: mean time in the queue.", ("mean_ms", "share"), "Raise max_num_seqs."),
    "time-in-prefill": Code("", "Bottleneck: mean time in prefill.", ("mean_ms", "share"), "Shorten or cache prompts."),
    "time-in-decode": Code("", "Bottleneck: mean time in decode.", ("mean_ms", "share")),
    "unequal-busy": Code("", "Bottleneck: cards of one engine unequally busy.", ("highest_share", "lowest_share")),
    "unequal-power": Code("", "Bottleneck: cards of one product with unlike power.", ("highest_w", "lowest_w")),
    "cpu-steal": Code("", "Bottleneck: CPU time that other guests took.", ("share",)),
    "cpu-busy": Code("", "Bottleneck: the host's cores are busy.", ("share",)),
    "cards-rested": Code("", "Bottleneck: cards rested while there was work.", ("busy_share", "work_share")),
    "outside-engine": Code("", "Bottleneck: time the engine did not see.", ("beyond_ms", "client_ms")),
    "engine-busy": Code("", "Bottleneck: share of time with a request to work on.", ("work_share",)),
    "card-busy": Code("", "Bottleneck: busy share of the busiest card.", ("busy_share",)),
    "memory-busy": Code("", "Bottleneck: busy share of card memory.", ("highest_share",)),
    "tpot-growth": Code("", "Bottleneck: TPOT against the base concurrency.", ("drift_pct",)),
    "not-ruled-out": Code("", "Bottleneck: causes of which nothing is known.", (), "Measure with their data at hand."),
    "bottleneck-unknown": Code("", "Bottleneck: no cause can be named.", (), "Give it the engine's metrics page."),
}
