"""Against a real vLLM, where one is to be had: counts agree with the engine's own, to the request and the token."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

URL = os.environ.get("CADENZA_REAL_VLLM_URL")
SCRIPT = Path(__file__).parents[2] / "scripts" / "cross_check_vllm.py"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        URL is None,
        reason="no vLLM named: run CADENZA_REAL_VLLM_URL=http://127.0.0.1:8000 make test beside a running one",
    ),
]


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_requests_and_tokens_agree_with_the_engines_metrics(api: str, tmp_path: Path) -> None:
    flags = ["--api", api, "-c", "1,4", "--requests", "16", "--output-tokens", "16:24", "--prompts", "random:32"]
    command = [sys.executable, str(SCRIPT), str(URL), str(tmp_path / "run"), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    for what in ("requests", "output tokens"):
        (row,) = [line for line in done.stdout.splitlines() if line.startswith(f"| {what} |")]
        assert "+0.00 %" in row
