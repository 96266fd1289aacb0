"""vLLM's plugin without vLLM."""

import logging

import pytest


def test_without_vllm_the_plugin_logs_a_line(caplog: pytest.LogCaptureFixture) -> None:
    from p2pcache.loader.integrations import vllm

    with caplog.at_level(logging.WARNING, "p2pcache"):
        vllm.register()
    assert "no load format 'p2pcache'" in caplog.text
    vllm.register.cache_clear()
