"""Typed reading of a JSON body, and refusals in the shape of an OpenAI error object."""

import json
from typing import NoReturn

from cadenza.engine.api.http import json_bytes, reason

JsonObject = dict[str, object]


class RefusalError(Exception):
    """The answer is an error object: `status`, and its body as bytes."""

    def __init__(self, status: int, kind: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        error = {"message": message, "type": kind, "param": param, "code": status}
        self.body = json_bytes({"error": error})


def bad(message: str, param: str | None = None, value: object = None) -> NoReturn:
    """Refuse what is well-formed and cannot be served."""
    if param is not None:
        shown = "" if value is None else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    raise RefusalError(400, "BadRequestError", message, param)


def malformed(message: str, param: str | None = None) -> NoReturn:
    """Refuse what is not well-formed: no JSON object, a field of another type, or a field that is missing."""
    raise RefusalError(400, reason(400), message, param)


def parse_body(content_type: str, body: bytes) -> JsonObject:
    """The object that a body holds; RefusalError if it holds none."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        malformed("the content type must be application/json")
    try:
        value: object = json.loads(body)
    except (ValueError, RecursionError):
        malformed("the body is not JSON")
    if not isinstance(value, dict):
        malformed("the body must be a JSON object")
    return value


class Fields:
    """A body's fields by type; null counts as absent. A field of another type is refused, by its name."""

    def __init__(self, body: JsonObject, within: str = "") -> None:
        self.body = body
        self._within = within

    def wrong(self, name: str, expected: str) -> RefusalError:
        """The refusal of a field that should have been `expected`."""
        return RefusalError(400, reason(400), f"{self._within}{name} must be {expected}", f"{self._within}{name}")

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.wrong(name, "a string")

    def integer(self, name: str) -> int | None:
        return self.as_integer(name, self.body.get(name))

    def as_integer(self, name: str, value: object) -> int | None:
        """`value` as an integer, where the field `name` is to be one (or a list of them); 16.0 and "16" are."""
        if value is None or type(value) is int:
            return value
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, str) and len(value) <= 20 and value.isascii() and value.removeprefix("-").isdigit():
            return int(value)
        raise self.wrong(name, "an integer")

    def number(self, name: str) -> float | None:
        value = self.body.get(name)
        if value is None:
            return None
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300:
            return float(value)
        raise self.wrong(name, "a number")

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in ("true", "false", 0, 1):
            return value in ("true", 1)
        raise self.wrong(name, "true or false")

    def mapping(self, name: str) -> JsonObject | None:
        value = self.body.get(name)
        if value is None or isinstance(value, dict):
            return value
        raise self.wrong(name, "an object")

    def object(self, name: str) -> "Fields | None":
        """The fields of an object within."""
        value = self.mapping(name)
        return None if value is None else Fields(value, f"{self._within}{name}.")
