"""Options: one table, two readers, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from engine import config_devices
from engine.cli_serve import add_arguments
from engine.config import OPTIONS, EngineConfig, build_config, is_loopback
from engine.config_devices import Devices
from engine.contract.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("H3_ENGINE_TOKEN", raising=False)


def build(tmp_path: Path, text: str | None = None, **given: Any) -> EngineConfig:
    file = None
    if text is not None:
        file = tmp_path / "engine.yaml"
        file.write_text(text)
    return build_config({"device": "cpu", **given}, file)


def refuse(tmp_path: Path, text: str | None = None, **given: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(tmp_path, text, **given)
    return caught.value


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    config = build(tmp_path, "model: /a\nport: 1234\nmax-seconds: 10\n", model="/b")
    assert (str(config.model), config.port, config.limits.max_seconds) == ("/b", 1234, 10.0)
    assert (config.host, config.limits.max_queue) == ("127.0.0.1", 64)


def test_every_option_can_stand_in_both_places() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = {flag for action in parser._actions for flag in action.option_strings}
    assert {option.flag for option in OPTIONS} == flags - {"-h", "--help", "--config"}


@pytest.mark.parametrize(
    ("text", "code", "field", "words"),
    [
        ("modle: /a", "config_unknown_key", "modle", "model"),
        ("ring_degree: 2", "config_unknown_key", "ring_degree", "ulysses_degree"),
        ("port: eighty", "config_bad_value", "port", "whole number"),
        ("port: 70000", "config_bad_value", "port", "65535"),
        ("port: true", "config_bad_value", "port", "whole number"),
        ("stop_on_eof: 1", "config_bad_value", "stop_on_eof", "true or false"),
        ("device: gpu", "config_bad_value", "device", "cuda"),
        ("stages: [denoise, decode]", "config_bad_value", "stages", "decode_video"),
        ("stages: []", "config_bad_value", "stages", "denoise"),
        ("max_seconds: .nan", "config_bad_value", "max_seconds", "0.25 to 3600"),
        ("max_seconds: .inf", "config_bad_value", "max_seconds", "0.25 to 3600"),
        ("data_timeout: .inf", "config_bad_value", "data_timeout", "10 to 86400"),
        ("data_timeout: 1", "config_bad_value", "data_timeout", "10 to 86400"),
        ("max_seconds: 1" + "0" * 400, "config_bad_value", "max_seconds", "0.25 to 3600"),
        ("max_queue: 1" + "0" * 5000, "config_bad_value", "config", "cannot be read"),
        ("port: 1\nport: 2", "config_bad_value", "config", "stands twice"),
        ("max-queue: 1\nmax_queue: 2", "config_conflict", "max_queue", "one option"),
        ('run_dir: "a\\0b"', "config_bad_value", "run_dir", "path"),
        ("run_dir: ~nobody-has-this-name/x", "config_bad_value", "run_dir", "path"),
        ("stages: " + "[" * 5000, "config_bad_value", "config", "cannot be read"),
        ("max_queue: 0", "config_bad_value", "max_queue", "1 to 10000"),
        ("- a\n- b", "config_bad_value", "config", "key: value"),
        ("a: [", "config_bad_value", "config", "YAML"),
    ],
)
def test_a_bad_file_is_refused_with_key_value_and_remedy(
    tmp_path: Path, text: str, code: str, field: str, words: str
) -> None:
    error = refuse(tmp_path, text, model="/a")
    assert (error.code, error.field) == (code, field)
    assert error.value is not None
    assert words in f"{error.message} {error.remedy}"


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        build_config({"model": "/a"}, tmp_path / "absent.yaml")


def test_without_a_model_nothing_starts(tmp_path: Path) -> None:
    assert "--model" in (refuse(tmp_path).remedy or "")


@pytest.mark.parametrize(
    ("given", "layout"),
    [({}, (1, 1)), ({"nproc_per_node": 3}, (3, 3)), ({"ulysses_degree": 2}, (2, 2))],
)
def test_an_unset_degree_follows_from_the_others(
    tmp_path: Path, given: dict[str, int], layout: tuple[int, int]
) -> None:
    config = build(tmp_path, model="/a", **given)
    assert (config.nproc_per_node, config.ulysses_degree) == layout


def test_ranks_that_do_not_equal_the_degrees_are_refused_with_working_layouts(tmp_path: Path) -> None:
    error = refuse(tmp_path, model="/a", nproc_per_node=4, ulysses_degree=3)
    assert (error.code, error.field, error.value) == ("config_conflict", "ulysses_degree", 3)
    assert "nproc_per_node 4 with ulysses_degree 4" in (error.remedy or "")


def test_one_rank_per_accelerator_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.config.find_devices", lambda wanted: Devices("cuda", 4))
    assert build(tmp_path, model="/a", device="auto").nproc_per_node == 4
    error = refuse(tmp_path, model="/a", device="auto", nproc_per_node=5)
    assert (error.field, error.value) == ("nproc_per_node", 5)


def test_an_accelerator_that_torch_does_not_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_devices, "_ask_torch", lambda: Devices("cpu", 1))
    error = refuse(tmp_path, model="/a", device="cuda")
    assert (error.code, error.field, error.value) == ("config_bad_value", "device", "cuda")


def test_torch_is_only_asked_when_there_is_a_device_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []

    def ask() -> Devices:
        asked.append(True)
        return Devices("cuda", 2)

    monkeypatch.setattr(config_devices, "_ask_torch", ask)
    monkeypatch.setattr(config_devices, "_DEVICE_FILES", ("/dev/no-such-device*",))
    assert config_devices.find_devices("auto") == Devices("cpu", 1)
    assert not asked
    monkeypatch.setattr(config_devices, "_DEVICE_FILES", ("/dev/null",))
    assert config_devices.find_devices("auto") == Devices("cuda", 2)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.7", "engine.example", "::"])
def test_another_host_than_loopback_needs_a_token(tmp_path: Path, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    error = refuse(tmp_path, model="/a", host=host)
    assert (error.code, error.field, error.value) == ("config_conflict", "host", host)
    monkeypatch.setenv("H3_ENGINE_TOKEN", "word")
    assert build(tmp_path, model="/a", host=host).token == "word"


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("localhost", True), ("127.9.9.9", True), ("::1", True), ("[::1]", True), ("1.2.3.4", False), ("", False)],
)
def test_loopback_is_recognised(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("text", ["", "\n", "two words", "wörd"])
def test_a_token_file_holds_one_word(tmp_path: Path, text: str) -> None:
    file = tmp_path / "token"
    file.write_text(text, encoding="utf-8")
    assert refuse(tmp_path, model="/a", token_file=str(file)).field == "token_file"
    file.write_text("word\n")
    assert build(tmp_path, model="/a", token_file=str(file)).token == "word"


@pytest.mark.parametrize("text", ["two\nlines", "two words", "wörd"])
def test_a_token_of_the_environment_is_one_word_too(tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("H3_ENGINE_TOKEN", text)
    error = refuse(tmp_path, model="/a")
    assert (error.field, error.value) == ("H3_ENGINE_TOKEN", None)
    monkeypatch.setenv("H3_ENGINE_TOKEN", " word\n")
    assert build(tmp_path, model="/a").token == "word"


def test_every_number_has_finite_bounds() -> None:
    numbers = [option for option in OPTIONS if option.kind in (int, float)]
    assert len(numbers) >= 8
    assert [option.name for option in numbers if not option.low <= option.high < math.inf] == []


def test_a_model_with_a_null_character_is_refused(tmp_path: Path) -> None:
    assert refuse(tmp_path, 'model: "a\\0b"').field == "model"
