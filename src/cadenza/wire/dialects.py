"""The APIs we speak, by the name that `Spec.api` gives them."""

from cadenza.wire.dialect import Dialect
from cadenza.wire.openai_chat import ChatDialect
from cadenza.wire.openai_completions import CompletionsDialect

DIALECTS: dict[str, Dialect] = {"chat": ChatDialect(), "completions": CompletionsDialect()}
