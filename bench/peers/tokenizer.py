"""A tokenizer small enough to be written from scratch, for tools that will not start without one.

Byte-level BPE over the 95 printable ASCII characters, tab and newline, with just the merges that make " tok", the word
the truth server answers with, one token. So a tool that counts by the text and one that counts by `usage` agree.
"""

import json
from pathlib import Path

_SPACE, _NEWLINE, _TAB = "Ġ", "Ċ", "ĉ"  # how byte-level BPE writes them
_MERGES = [("t", "o"), ("to", "k"), (_SPACE, "tok")]
_UNKNOWN, _END = "<unk>", "<end>"
_CHAT = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def write_tokenizer(folder: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and config.json (Hugging Face formats) into `folder`; `folder`."""
    characters = [chr(code) for code in range(0x21, 0x7F)] + [_SPACE, _NEWLINE, _TAB]
    tokens = [_UNKNOWN, _END, *characters, *("".join(pair) for pair in _MERGES)]
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = [{"id": at, "content": token, "special": True, **plain} for at, token in enumerate((_UNKNOWN, _END))]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": _UNKNOWN,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: at for at, token in enumerate(tokens)},
            "merges": [list(pair) for pair in _MERGES],
        },
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": _UNKNOWN,
        "eos_token": _END,
        "model_max_length": 32768,
        "chat_template": _CHAT,
    }
    model = {
        "model_type": "gpt2",
        "vocab_size": len(tokens),
        "n_positions": 32768,
        "bos_token_id": tokens.index(_END),
        "eos_token_id": tokens.index(_END),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in (("tokenizer", tokenizer), ("tokenizer_config", settings), ("config", model)):
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder


def write_hub_cache(hub: Path, name: str) -> None:
    """Put the tokenizer into `hub` (HF_HUB_CACHE) as if `name`, "OWNER/REPO", had been fetched there once."""
    revision = "0" * 40
    folder = hub / f"models--{name.replace('/', '--')}"
    write_tokenizer(folder / "snapshots" / revision)
    (folder / "refs").mkdir(exist_ok=True)
    (folder / "refs" / "main").write_text(revision, encoding="utf-8")
