"""A server on a real model whose process is killed: it comes back by itself."""

import shutil
import time

import pytest

from ...processes import process
from ...running import frames

NOTICED_S = 2.0


@pytest.mark.timeout(240)
def test_a_real_engine_is_killed_while_it_streams(tmp_path, folders):
    """A tiny Gemma: its worker is killed, and the same port answers again."""
    model = tmp_path / "gemma3"
    shutil.copytree(folders["gemma3"], model)
    config = model / "config.json"  # the modes' prompts are long where words are rare
    config.write_text(config.read_text().replace("1024", "8192"))
    arguments = ("--no-rag", "--engine", "mlx", "--model", str(model))
    with process(tmp_path, *arguments) as server:
        server.wait_ready(120)
        answer = server.stream()
        assert answer.status == 200, answer.read()
        answer.read(20)
        killed = time.monotonic()
        server.kill()
        assert server.ready()[0] == 503
        noticed = time.monotonic() - killed
        reasons = server.wait_ready(120)
        answer = server.stream(max_tokens=20)
        body = answer.read()

    assert noticed < NOTICED_S
    assert answer.status == 200, body
    assert frames(body)[-1] == "[DONE]" and "error" not in frames(body)[-2]
    how = "was killed by signal 9 (SIGKILL)"
    assert reasons[0] == f"the server's worker {how}, and starts again"
    assert f"loading the model (restarted: the last one {how})" in reasons
