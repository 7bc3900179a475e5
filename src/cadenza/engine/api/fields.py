"""Typed reading of a JSON body, and refusals: the errors of a server built on pydantic, as vLLM 0.32 words them."""

import json
import re
import sys
from typing import NamedTuple, NoReturn

from cadenza.engine.api.http import json_bytes, reason

JsonObject = dict[str, object]

_REPORTED = 10
_SHOWN_CHARS = 200
_PROBLEM_CHARS = 1000
_INTEGER = re.compile(r"\s*[+-]?\d{1,300}(\.0*)?\s*", re.ASCII)
_TRUE = {"1", "on", "t", "true", "y", "yes"}
_FALSE = {"0", "off", "f", "false", "n", "no"}


class RefusalError(Exception):
    """The answer is an error object: `status`, and its body as bytes."""

    def __init__(self, status: int, kind: str, message: str, param: str | None) -> None:
        super().__init__(message)
        self.status = status
        error = {"message": message, "type": kind, "param": param, "code": status}
        self.body = json_bytes({"error": error})


class Problem(NamedTuple):
    """What is wrong with one value: pydantic's error type, the value's place, the text, the value, and what else."""

    kind: str
    loc: str
    text: str
    value: object
    context: JsonObject | None = None

    def shown(self) -> str:
        """It as a line of the message."""
        detail: JsonObject = {"type": self.kind, "loc": self.loc, "msg": self.text, "input": _cut(self.value)}
        if self.context is not None:
            detail["ctx"] = self.context
        text = str(detail)
        return text if len(text) <= _PROBLEM_CHARS else f"{text[:_PROBLEM_CHARS]}...[truncated]"


def bad(message: str, param: str | None = None, value: object = None) -> NoReturn:
    """Refuse what is well-formed and cannot be served."""
    if param is not None:
        shown = "" if value is None else f", value={value}"
        message = f"{message} (parameter={param}{shown})"
    raise RefusalError(400, "BadRequestError", message, param)


def invalid(*problems: Problem) -> NoReturn:
    """Refuse what is not well-formed; the first of the problems says where."""
    label = "error" if len(problems) == 1 else "errors"
    lines = [f"{len(problems)} validation {label}:", *(f"  {problem.shown()}" for problem in problems[:_REPORTED])]
    if len(problems) > _REPORTED:
        lines.append(f"  ...and {len(problems) - _REPORTED} more {label}")
    raise RefusalError(400, reason(400), "\n".join(lines), problems[0].loc)


def parse_body(content_type: str, body: bytes, shapes: int = 1) -> JsonObject:
    """The object that a body holds; RefusalError if it holds none. `shapes` it could have had: as many complaints."""
    if content_type.partition(";")[0].strip().lower() != "application/json":
        message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
        raise RefusalError(400, reason(400), message, None)
    if not body:
        invalid(Problem("missing", "body", "Field required", None))
    try:
        value: object = json.loads(body)
    except json.JSONDecodeError as error:
        invalid(Problem("json_invalid", f"body.{error.pos}", "JSON decode error", {}, {"error": error.msg}))
    except (ValueError, RecursionError) as error:
        invalid(Problem("json_invalid", "body", "JSON decode error", {}, {"error": type(error).__name__}))
    if not isinstance(value, dict):
        invalid(*[_no_object("body", value)] * shapes)
    return value


def _no_object(loc: str, value: object) -> Problem:
    text = "Input should be a valid dictionary or object to extract fields from"
    return Problem("model_attributes_type", loc, text, value)


def _cut(value: object) -> str:
    if isinstance(value, dict):
        return f"<dict of {len(value)} items>"
    if isinstance(value, list):
        return f"<list of {len(value)} items>"
    text = str(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}...[truncated]"


class Fields:
    """A body's fields by type, as leniently as pydantic reads them; null counts as absent.

    What is wrong with them gathers in `problems`, in the order of reading; `check` refuses if there are any.
    """

    def __init__(self, body: JsonObject, loc: str = "body", problems: list[Problem] | None = None) -> None:
        self.body = body
        self.problems: list[Problem] = [] if problems is None else problems
        self._loc = loc

    def check(self) -> None:
        """RefusalError, naming all that is wrong with what has been read."""
        if self.problems:
            invalid(*self.problems)

    def wrong(self, name: str, kind: str, text: str, value: object, context: JsonObject | None = None) -> None:
        """Note what is wrong with a field."""
        self.problems.append(Problem(kind, f"{self._loc}.{name}", text, value, context))

    def text(self, name: str) -> str | None:
        value = self.body.get(name)
        if value is None or isinstance(value, str):
            return value
        self.wrong(name, "string_type", "Input should be a valid string", value)
        return None

    def integer(self, name: str) -> int | None:
        return self.as_integer(name, self.body.get(name))

    def as_integer(self, name: str, value: object) -> int | None:
        """`value` as an integer, where the field `name` is to be one (or a list of them)."""
        if value is None or type(value) is int:
            return value
        if isinstance(value, bool):
            return int(value)
        if isinstance(value, str) and _INTEGER.fullmatch(value):
            return int(value.partition(".")[0])
        wrong = "Input should be a valid integer"
        if isinstance(value, float):
            if value.is_integer():
                return int(value)
            self.wrong(name, "int_from_float", f"{wrong}, got a number with a fractional part", value)
        elif isinstance(value, str):
            self.wrong(name, "int_parsing", f"{wrong}, unable to parse string as an integer", value)
        else:
            self.wrong(name, "int_type", wrong, value)
        return None

    def number(self, name: str) -> float | None:
        value = self.body.get(name)
        wrong = "Input should be a valid number"
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                self.wrong(name, "float_parsing", f"{wrong}, unable to parse string as a number", value)
                return None
        if value is None:
            return None
        if isinstance(value, int | float) and abs(value) <= sys.float_info.max:
            return float(value)
        self.wrong(name, "float_type", wrong, value)
        return None

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.body.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        wrong = "Input should be a valid boolean"
        if isinstance(value, str | int | float):
            text = str(value).lower().removesuffix(".0")
            if text in _TRUE:
                return True
            if text not in _FALSE:
                self.wrong(name, "bool_parsing", f"{wrong}, unable to interpret input", value)
        else:
            self.wrong(name, "bool_type", wrong, value)
        return False

    def mapping(self, name: str) -> JsonObject | None:
        value = self.body.get(name)
        if value is None or isinstance(value, dict):
            return value
        self.wrong(name, "dict_type", "Input should be a valid dictionary", value)
        return None

    def object(self, name: str) -> "Fields | None":
        """The fields of an object within; what is wrong with them is wrong here."""
        value = self.body.get(name)
        loc = f"{self._loc}.{name}"
        if value is None:
            return None
        if isinstance(value, dict):
            return Fields(value, loc, self.problems)
        self.problems.append(_no_object(loc, value))
        return None
