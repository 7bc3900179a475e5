"""One printable line out of whatever a server sends as an error: JSON of several shapes, an HTML page, plain text."""

import html
import re

import msgspec

from cadenza.record import printable

# Only the beginning of an error body is looked at: servers may echo the whole prompt in it.
_LOOK_BYTES = 64 << 10
_TITLE = re.compile(r"<title[^>]*>(.*?)</title>", re.IGNORECASE | re.DOTALL)
_TAG = re.compile(r"<[^>]*>")
_MESSAGE_KEYS = ("message", "error", "detail", "msg", "error_message", "errors")


def read_error(body: bytes, content_type: str = "") -> str:
    """The server's own words from an HTTP error body; at most 300 characters, never empty, never raises."""
    if not body.strip():
        return "an empty body"
    try:
        value = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        pass
    else:
        return _describe(value) or printable(body[:_LOOK_BYTES].decode("utf-8", "replace"))
    text = body[:_LOOK_BYTES].decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    if "html" in content_type.lower() or text[:15].lower().startswith(("<!doctype html", "<html")):
        title = _TITLE.search(text)
        words = title.group(1) if title else _TAG.sub(" ", text)
        return printable(f"an HTML page: {html.unescape(words).strip() or 'without text'}")
    return printable(text) or "a body without printable text"


def _describe(value: object, depth: int = 4) -> str | None:
    """The message inside a decoded JSON error, None where there is none that we know.

    OpenAI, vLLM, SGLang, llama.cpp, Ollama `{"error": {"message": …}}`; TGI `{"error": "…", "error_type": "…"}`; older
    vLLM `{"object": "error", "message": …}`; FastAPI `{"detail": "…"}` and `{"detail": [{"loc": […], "msg": "…"}]}`.
    """
    if isinstance(value, str):
        return printable(value) or None
    if depth == 0:
        return None
    if isinstance(value, list):
        found = [text for item in value[:3] if (text := _describe(item, depth - 1))]
        return printable("; ".join(found)) or None
    if isinstance(value, dict):
        for key in _MESSAGE_KEYS:
            text = _describe(value.get(key), depth - 1)
            if text:
                return printable(_locate(value.get("loc")) + text)
    return None


def _locate(loc: object) -> str:
    """FastAPI's path to the field at fault, e.g. `["body", "max_tokens"]`, as a prefix."""
    return ".".join(str(part) for part in loc) + ": " if isinstance(loc, list) and loc else ""
