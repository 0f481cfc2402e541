"""Addresses, errors, texts and the launcher's choices, without ComfyUI and without an engine."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import socket
import sys
import urllib.error
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from engine.cli.serve import add_arguments
from engine.config import build_config


@pytest.fixture(scope="module")
def module(h3pack: ModuleType) -> Any:
    return lambda name: importlib.import_module(f"h3pack.{name}")


@pytest.mark.parametrize(
    ("url", "checked"),
    [
        ("http://127.0.0.1:8190", "http://127.0.0.1:8190"),
        (" https://gpu.example/ ", "https://gpu.example"),
        ("localhost:8190", "http://localhost:8190"),
        ("gpu.example", "http://gpu.example"),
        ("http://[::1]:8190", "http://[::1]:8190"),
    ],
)
def test_a_url_is_reduced_to_its_host(module: Any, url: str, checked: str) -> None:
    assert module("engine.contract.urls").check_url(url) == checked


@pytest.mark.parametrize(
    "url",
    ["localhost:port", "a host", "ftp://host", "http://", "http://host:port", "http://host/path", "http://u:p@host"],
)
def test_what_is_not_an_engine_url_is_refused(module: Any, url: str) -> None:
    with pytest.raises(Exception, match=r"URL") as caught:
        module("engine.contract.urls").check_url(url)
    assert caught.value.field == "url"
    assert caught.value.remedy


def test_a_token_never_shows_in_an_address(module: Any) -> None:
    assert "secret" not in repr(module("comfy_h3.address").Address("http://127.0.0.1:1", "secret"))


def test_an_engine_that_does_not_answer_is_named(module: Any) -> None:
    address = module("comfy_h3.address")
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9") as caught:
        address.get_json(address.Address("http://127.0.0.1:9"), "/v1/health")
    assert caught.value.code == "connection_lost"
    assert caught.value.message == "The engine at http://127.0.0.1:9 does not answer (connection refused)."
    assert "clear url in H3 Engine Connect" in caught.value.remedy


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (urllib.error.URLError(TimeoutError("timed out")), "no answer in time"),
        (urllib.error.URLError(socket.gaierror(-2, "Name or service not known")), "name or service not known"),
        (TimeoutError(), "no answer in time"),
        (ConnectionResetError("the engine closed the connection"), "the engine closed the connection"),
        (OSError(), "OSError"),
    ],
)
def test_why_nobody_answers_is_told_in_plain_words(module: Any, error: OSError, words: str) -> None:
    address = module("comfy_h3.address")
    assert f"({words})" in address.unreachable(address.Address("http://h:1"), error).message


def test_a_node_error_without_a_value_shows_no_empty_input(module: Any) -> None:
    errors, contract = module("comfy_h3.errors"), module("engine.contract.errors")
    error = contract.RequestError("unauthorized", "The token is missing.", field="Authorization", remedy="Set it.")
    assert str(errors.NodeError(error)) == "The token is missing.\nSet it."


def test_a_node_error_names_the_input_the_value_and_the_remedy(module: Any) -> None:
    errors, contract = module("comfy_h3.errors"), module("engine.contract.errors")
    error = contract.RequestError("out_of_range", "Too few.", field="request.steps", value=0, remedy="Use 1.")
    with pytest.raises(errors.NodeError) as caught, errors.node_errors():
        raise errors.with_log(error, "last line")
    assert caught.value.code == "out_of_range"
    assert str(caught.value).splitlines()[:3] == ["Too few.", "steps = 0", "Use 1."]
    assert "last line" in str(caught.value)


def test_a_field_of_a_part_is_the_input_that_brought_it(module: Any) -> None:
    errors, contract = module("comfy_h3.errors"), module("engine.contract.errors")
    error = contract.RequestError("wrong_model", "No.", field="parts.conditioning.prompt_embeds", value="[1, 2, 3]")
    assert errors.NodeError(error).field == "conditioning"


def test_a_node_names_a_field_as_its_own_input(module: Any) -> None:
    errors, contract = module("comfy_h3.errors"), module("engine.contract.errors")
    inputs = {"request.guides[0].frame": "position", "request.guides[0]": "video"}
    for field, name in [("frame", "position"), ("media", "video"), ("media.part", "video")]:
        error = contract.RequestError("out_of_range", "No.", field=f"request.guides[0].{field}", value=3, remedy="X.")
        assert errors.NodeError(error, inputs).field == name
    other = contract.RequestError("out_of_range", "No.", field="request.width", value=3, remedy="X.")
    assert errors.NodeError(other, inputs).field == "width"


def test_what_is_not_the_contracts_passes_through(module: Any) -> None:
    with pytest.raises(KeyboardInterrupt), module("comfy_h3.errors").node_errors():
        raise KeyboardInterrupt


def test_loading_shows_component_and_bytes(module: Any) -> None:
    health = {"status": "loading", "progress": {"component": "vae", "bytes_done": 5e9, "bytes_total": 20e9}}
    assert module("comfy_h3.texts").loading_text(health) == "Loading vae: 5.0 GB of 20.0 GB (25%)"


def test_loading_a_small_model_shows_smaller_units(module: Any) -> None:
    health = {"status": "loading", "progress": {"component": "vae", "bytes_done": 98_300, "bytes_total": 4e6}}
    assert module("comfy_h3.texts").loading_text(health) == "Loading vae: 98.3 kB of 4.0 MB (2%)"


def test_a_step_shows_what_is_left(module: Any) -> None:
    messages, texts = module("engine.contract.messages"), module("comfy_h3.texts")
    assert texts.event_text(messages.Step("denoise", 3, 50, 75.0, 0.06)) == "Sampling: step 3 of 50, 1:15 left"
    assert texts.event_text(messages.Step("denoise", 50, 50, 0.0, 1.0)) == "Sampling: step 50 of 50"


def test_a_stage_that_was_run_before_is_told(module: Any) -> None:
    messages, texts = module("engine.contract.messages"), module("comfy_h3.texts")
    known = messages.StageFinished("encode_prompt", 0.0, 0.1, cached=True)
    assert texts.event_text(known) == "Encoding the prompt: known already"
    assert texts.event_text(messages.StageFinished("encode_prompt", 2.0, 0.1)) is None


def test_a_waiting_job_says_for_what(module: Any) -> None:
    messages, texts = module("engine.contract.messages"), module("comfy_h3.texts")
    assert texts.event_text(messages.Queued(2, "busy")) == (
        "Waiting, number 2 in the queue: the engine works on another job"
    )
    assert texts.event_text(messages.Queued(1, "ready")) is None


def test_references_are_told_with_their_names_sizes_rows_and_shares(module: Any) -> None:
    clip = {"width": 64, "height": 96, "frames": 39, "audio_latents": 90, "rows": 228, "share": 0.2}
    facts = {
        "references": [
            {"kind": "audio", "audio_latents": 80, "rows": 160, "share": 0.1},
            {"kind": "image", "width": 96, "height": 64, "frames": 1, "rows": 6, "share": 0.004},
            {"kind": "video_audio", **clip},
        ]
    }
    assert module("comfy_h3.texts").references_text(facts).splitlines() == [
        "Audio 1: 2.00 s of sound, 160 rows (10.0%)",
        "Picture 1: 96x64, 6 rows (0.4%)",
        "Audio 2 and Video 1: 64x96, 39 frames, 2.25 s of sound, 228 rows (20.0%)",
    ]
    assert module("comfy_h3.texts").references_text({}) == ""


def test_only_what_differs_from_the_engines_defaults_is_given_to_it(module: Any) -> None:
    launcher = module("comfy_h3.launcher")
    assert launcher.ParallelSpec().flags() == []
    spec = launcher.ParallelSpec(ulysses_degree=2, ring_degree=2, compile=True, rank_weights="2,1,1,1")
    words = ["--ulysses-degree", "2", "--ring-degree", "2", "--compile", "--rank-weights", "2,1,1,1"]
    assert spec.flags() == words


@pytest.mark.parametrize(
    ("given", "same"), [(" ", ""), ("\t\n", ""), ("2, 1", "2,1"), (" 2 ,1\n", "2,1"), ("1 0,2", "1 0,2")]
)
def test_weights_that_differ_in_spaces_alone_mean_one_engine(module: Any, given: str, same: str) -> None:
    launcher = module("comfy_h3.launcher")
    specs = {launcher.EngineSpec(parallel=launcher.ParallelSpec(rank_weights=text)) for text in (given, same)}
    assert len(specs) == 1
    (spec,) = specs
    assert spec.parallel.flags() == (["--rank-weights", same] if same else [])


def test_every_field_of_the_layout_is_an_option_of_the_engine(module: Any) -> None:
    everything = module("comfy_h3.launcher").ParallelSpec(2, 2, 2, 2, True, True, "2,1,1,1")
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = vars(parser.parse_args(everything.flags()))
    given = {name: value for name, value in parsed.items() if name not in ("config", "preset")}
    layout = build_config({"model": "/a", "device": "cpu", **given}).layout
    assert layout.to_dict() == {**dataclasses.asdict(everything), "rank_weights": (2.0, 1.0, 1.0, 1.0)}


def test_a_length_that_is_off_is_not_sent_to_an_engine_that_may_not_know_it(module: Any) -> None:
    requests = module("engine.contract.requests")
    sent = requests.request_to_dict(requests.Denoise("denoise", 64, 64, 22))
    assert "pad_seq_len" not in sent
    assert requests.parse_request(sent) == requests.Denoise("denoise", 64, 64, 22)
    pinned = requests.Denoise("denoise", 64, 64, 22, pad_seq_len=512)
    assert requests.parse_request(requests.request_to_dict(pinned)) == pinned


def test_the_engines_python_is_the_chosen_one_first(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("H3_ENGINE_PYTHON", sys.executable)
    assert module("comfy_h3.environment").find_python(tmp_path) == sys.executable


def test_a_chosen_python_that_is_none_is_named(module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H3_ENGINE_PYTHON", str(tmp_path / "nothing"))
    with pytest.raises(Exception, match="H3_ENGINE_PYTHON") as caught:
        module("comfy_h3.environment").find_python(tmp_path)
    assert caught.value.code == "config_bad_value"


def test_without_any_environment_the_remedy_is_the_install_command(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("H3_ENGINE_PYTHON", raising=False)
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\necho 'ModuleNotFoundError: No module named diffusers' >&2\nexit 1\n")
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(Exception, match="No module named diffusers") as caught:
        module("comfy_h3.environment").find_python(tmp_path)
    assert str(tmp_path / "install.py") in caught.value.remedy


async def test_a_missing_websockets_is_one_clear_error(module: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    client, requests = module("comfy_h3.client"), module("engine.contract.requests")
    monkeypatch.setitem(sys.modules, "websockets.asyncio.client", None)

    async def ignore(_: Any) -> None:
        return

    address = module("comfy_h3.address").Address("http://127.0.0.1:9")
    with pytest.raises(Exception, match="websockets") as caught:
        await client.Job(address, requests.Echo("echo"), {}, on_event=ignore).run()
    assert "requirements.txt" in caught.value.remedy
