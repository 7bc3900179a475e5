"""Why a figure of a point is null."""

import numpy as np

from cadenza.analysis.point_summary import PointSummary


def explain_undefined(point: PointSummary) -> dict[str, str]:
    """Why a figure is null."""
    reasons = {}
    for name in ("offered_per_s", "achieved_per_s"):
        if np.isnan(getattr(point, name)):
            reasons[name] = "fewer than two requests were sent at different times"
    if np.isnan(point.throughput_tok_per_s):
        reasons["throughput_tok_per_s"] = "the window has no length"
    if np.isnan(point.requests_per_s):
        reasons["requests_per_s"] = "there is no throughput, or no answer with a token to divide it by"
    if point.goodput is None:
        reasons["goodput"] = "no bounds were given: `cadenza show RUN --slo ttft=500,tpot=50`, or slo in the settings"
    if np.isnan(point.ceiling_share):
        reasons["ceiling_share"] = "the machine was not calibrated, or nothing was measured in real time"
    if np.isnan(point.tokens_per_event):
        reasons["tokens_per_event"] = "no answer had its tokens counted by the server"
    if point.stability is None:
        reasons["stability"] = "in a closed loop the answers set the rate"
    if point.token_source is None:
        reasons["token_source"] = "no request succeeded"
    empty = {
        "ttft_ms": "no measured answer has a token",
        "user_ttft_ms": "no measured answer has a token",
        "tpot_ms": "no measured answer has tokens at two times, in a number that is known",
        "itl_ms": "no measured answer has two events",
        "latency_ms": "no measured answer has a token",
        "user_latency_ms": "no measured answer has a token",
        "dispatch_lag_ms": "no request was sent",
        "read_lag_ms": "no answer was stamped by the kernel",
        "connect_ms": "every connection was open already",
    }
    return reasons | {name: why for name, why in empty.items() if getattr(point, name).n == 0}
