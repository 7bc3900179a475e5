"""Situations whose bottleneck is known, for stage_bottlenecks.py: what is staged, and with which flags."""

from typing import NamedTuple


class Situation(NamedTuple):
    """One cause.

    expected   the verdict's kind; beside: another that holds and is to be told beside it
    engine     flags of `cadenza engine`
    vllm       flags of `vllm serve`; None: it cannot be staged there
    run        flags of `cadenza run`; `on_engine`, `on_vllm`: more of them there
    starved    the client stands still for most of the time
    heat_s     seconds that the engine's cards work before the run (a server without cards is given those of a simulated
               board, overheated)
    cards      shares of the time that the cards of a simulated board beside the server work
    delay_s    of a relay before the server, each way
    burnt      every core of this machine is kept busy
    """

    name: str
    expected: str
    staged: str
    run: tuple[str, ...]
    engine: tuple[str, ...] = ("--speed", "5")
    vllm: tuple[str, ...] | None = ()
    on_engine: tuple[str, ...] = ()
    on_vllm: tuple[str, ...] = ()
    beside: str = ""
    starved: bool = False
    heat_s: float = 0.0
    cards: tuple[float, ...] = ()
    delay_s: float = 0.0
    burnt: bool = False


SITUATIONS = (
    Situation(
        name="client",
        expected="client",
        staged="C = 32, and the client stands still for 190 of each 200 ms, as behind a CPU limit of 0.05",
        run=("-c", "32", "--output-tokens", "16"),
        engine=("--speed", "20"),
        on_engine=("--requests", "256"),
        on_vllm=("--requests", "256"),
        starved=True,
    ),
    Situation(
        name="queue",
        expected="queue",
        staged="C = 16 where 2 may run: `--max-num-seqs 2`",
        run=("-c", "16", "--output-tokens", "64:128"),
        engine=("--speed", "5", "--max-num-seqs", "2"),
        vllm=("--max-num-seqs", "2"),
        on_engine=("--requests", "32"),
        on_vllm=("--requests", "128"),
    ),
    Situation(
        name="KV cache",
        expected="KV capacity",
        staged="C = 8, answers of 256 tokens, and KV blocks for 1,024 tokens in all",
        run=("-c", "8", "--output-tokens", "256"),
        engine=("--speed", "5", "--set", "num_gpu_blocks=65", "--set", "max_model_len=512"),
        vllm=("--num-gpu-blocks-override", "33", "--block-size", "32", "--max-model-len", "512"),  # 32: what a CPU has
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "96"),
    ),
    Situation(
        name="decode",
        expected="decode bandwidth",
        staged="C = 4, short prompts, answers of 128 to 256 tokens, and room for all of it",
        run=("-c", "4", "--output-tokens", "128:256"),
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "128"),
    ),
    Situation(
        name="throttle",
        expected="thermal throttle",
        staged="C = 4, and the fan of the second simulated card stands still: `--board-fault overheat:1`",
        run=("-c", "4", "--output-tokens", "64"),
        engine=("--speed", "5", "--board-fault", "overheat:1"),
        on_engine=("--requests", "8"),
        on_vllm=("--requests", "128"),
        heat_s=280.0,
    ),
    Situation(
        name="heat and queue",
        expected="thermal throttle",
        beside="queue",
        staged="both at once: C = 8 where 2 may run, and the fan stands still",
        run=("-c", "8", "--output-tokens", "32"),
        engine=("--speed", "5", "--max-num-seqs", "2", "--board-fault", "overheat:1"),
        vllm=("--max-num-seqs", "2"),
        on_engine=("--requests", "8"),
        on_vllm=("--requests", "128"),
        heat_s=280.0,
    ),
    Situation(
        name="prefill",
        expected="prefill",
        staged="long prompts (1,500 tokens; of a real one 700 words), answers of 2",
        run=("-c", "2", "--output-tokens", "2"),
        engine=("--speed", "2", "--timing", "physics"),
        on_engine=("--prompts", "random:1500", "--requests", "64"),
        on_vllm=("--prompts", "random:700", "--requests", "128"),  # of its tokens, up to 1,500
    ),
    Situation(
        name="network",
        expected="network",
        staged="answers of 4 tokens through a relay that holds each byte for 50 ms, each way",
        run=("-c", "2", "--output-tokens", "4"),
        engine=("--speed", "1"),
        on_engine=("--requests", "24"),
        on_vllm=("--requests", "64"),
        delay_s=0.05,
    ),
    Situation(
        name="straggler",
        expected="straggler card",
        staged="C = 4, and the files of two cards tell that one works all the time and the other half of it",
        run=("-c", "4", "--output-tokens", "32"),
        engine=("--speed", "1"),
        on_engine=("--requests", "8"),
        on_vllm=("--requests", "128"),
        cards=(1.0, 0.5),
    ),
    Situation(
        name="host CPU",
        expected="host CPU",
        staged="C = 4, every core computes for nothing, and the files of two cards tell that they rest for 60 % of it",
        run=("-c", "4", "--output-tokens", "32"),
        engine=("--speed", "1"),
        vllm=None,  # there the cores are what the model runs on
        on_engine=("--requests", "8"),
        cards=(0.4, 0.4),
        burnt=True,
    ),
    Situation(
        name="nothing",
        expected="none",
        staged="a server with headroom: answers of 16 tokens, a request every 5 s of its time (a real one: 2 each s)",
        run=("--output-tokens", "16"),
        on_engine=("--rate", "1", "--requests", "16"),
        on_vllm=("--rate", "2", "--requests", "32"),
    ),
)
