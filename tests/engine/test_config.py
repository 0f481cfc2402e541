"""Options: one table, two readers, and what is refused before anything starts."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import pytest

from engine import config_devices
from engine.cli.serve import add_arguments
from engine.config import OPTIONS, EngineConfig, build_config, is_loopback
from engine.config_devices import Devices
from engine.config_layout import check_layout
from engine.config_vae import check_tiles, tile_warnings
from engine.contract.errors import ConfigError
from engine.contract.limits import ModelFacts
from engine.controller.fleet import _layout_flags, _vae_flags
from engine.fleet import parse_arguments
from engine.rank_options import ModelOptions, ParallelOptions, RankOptions, VaeOptions
from engine.stacks_shares import kept_components


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
    assert {option.flag for option in OPTIONS} == flags - {"-h", "--help", "--config", "--preset"}


@pytest.mark.parametrize(
    ("text", "code", "field", "words"),
    [
        ("modle: /a", "config_unknown_key", "modle", "model"),
        ("rign_degree: 2", "config_unknown_key", "rign_degree", "ring_degree"),
        ("port: eighty", "config_bad_value", "port", "whole number"),
        ("port: 70000", "config_bad_value", "port", "65535"),
        ("port: true", "config_bad_value", "port", "whole number"),
        ("stop_on_eof: 1", "config_bad_value", "stop_on_eof", "true or false"),
        ("device: gpu", "config_bad_value", "device", "cuda"),
        ("stages: [denoise, decode]", "config_bad_value", "stages", "decode_video"),
        ("stages: []", "config_bad_value", "stages", "denoise"),
        ("partitions: transfomer_ref", "config_bad_value", "partitions", "Did you mean transformer_ref"),
        ("component_dir: [tokeniser=/x]", "config_bad_value", "component_dir", "Did you mean tokenizer"),
        ("component_dir: [vae]", "config_bad_value", "component_dir", "NAME=DIR"),
        ("component_dir: [vae=]", "config_bad_value", "component_dir", "NAME=DIR"),
        ("component_dir: 7", "config_bad_value", "component_dir", "NAME=DIR"),
        ("component_dir: {vae: 7}", "config_bad_value", "component_dir", "NAME=DIR"),
        ("component_dir: {}", "config_bad_value", "component_dir", "NAME=DIR"),
        ("component_dir: [vae=/a, vae=/b]", "config_bad_value", "component_dir", "two folders"),
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


def test_what_is_loaded_of_the_checkpoint_can_be_chosen_in_both_places(tmp_path: Path) -> None:
    config = build(tmp_path, model="/a")
    assert config.model_options == ModelOptions(partitions=None, component_dirs={}, own_code=False)
    text = "partitions: [transformer_ref]\ncomponent-dir:\n  vae: ~/x\n  tokenizer: /y\ntrust-remote-code: true\n"
    wanted = ModelOptions(
        partitions=("transformer_ref",),
        component_dirs={"vae": str(Path.home() / "x"), "tokenizer": "/y"},
        own_code=True,
    )
    assert build(tmp_path, text, model="/a").model_options == wanted
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    flags = "--partitions transformer_ref --component-dir vae=~/x --component-dir tokenizer=/y --trust-remote-code"
    given = vars(parser.parse_args(flags.split()))
    assert (
        build(
            tmp_path, model="/a", **{name: given[name] for name in given if name not in ("config", "preset")}
        ).model_options
        == wanted
    )
    assert ModelOptions.from_json(wanted.to_json()) == wanted


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        build_config({"model": "/a"}, tmp_path / "absent.yaml")


def test_without_a_model_nothing_starts(tmp_path: Path) -> None:
    assert "--model" in (refuse(tmp_path).remedy or "")


@pytest.mark.parametrize(
    ("given", "ranks", "ulysses"),
    [
        ({}, 1, 1),
        ({"nproc_per_node": 3}, 3, 3),
        ({"ulysses_degree": 2}, 2, 2),
        ({"ring_degree": 2}, 2, 1),
        ({"nproc_per_node": 8, "ring_degree": 2}, 8, 4),
        ({"nproc_per_node": 8, "ring_degree": 2, "tp_degree": 2}, 8, 2),
        ({"ulysses_degree": 3, "tp_degree": 2}, 6, 3),
    ],
)
def test_an_unset_degree_follows_from_the_others(
    tmp_path: Path, given: dict[str, int], ranks: int, ulysses: int
) -> None:
    config = build(tmp_path, model="/a", **given)
    assert (config.nproc_per_node, config.layout.ulysses_degree, config.layout.world_size) == (ranks, ulysses, ranks)


def test_the_layout_can_stand_in_the_file(tmp_path: Path) -> None:
    text = (
        "ring-degree: 2\ntp_degree: 2\nnproc_per_node: 8\nrank-weights: [2, 1, 1.5, 1]\n"
        "text_encoder_tp_degree: 4\nshard_weights: true\ncompile: true\nmax_pad_seq_len: 4096\n"
    )
    config = build(tmp_path, text, model="/a")
    assert config.layout.to_dict() == {
        "ulysses_degree": 2,
        "ring_degree": 2,
        "tp_degree": 2,
        "text_encoder_tp_degree": 4,
        "rank_weights": (2.0, 1.0, 1.5, 1.0),
        "shard_weights": True,
        "compile": True,
    }
    assert config.limits.max_pad_seq_len == 4096
    assert build(tmp_path, text, model="/a", rank_weights="1,1,1,3").layout.rank_weights == (1.0, 1.0, 1.0, 3.0)


@pytest.mark.parametrize(
    ("given", "field", "value", "words"),
    [
        (
            {"nproc_per_node": 4, "ulysses_degree": 3},
            "ulysses_degree",
            3,
            "--ulysses-degree 2 --ring-degree 2 --tp-degree 1;",
        ),
        ({"nproc_per_node": 4, "ring_degree": 3}, "ring_degree", 3, "--ring-degree 4"),
        ({"nproc_per_node": 2, "ulysses_degree": 2, "tp_degree": 2}, "ulysses_degree", 2, "--nproc-per-node 4"),
        ({"nproc_per_node": 3, "tp_degree": 2}, "tp_degree", 2, "--ulysses-degree 1 --ring-degree 3 --tp-degree 1."),
        ({"nproc_per_node": 2, "ulysses_degree": 1}, "ulysses_degree", 1, "--ulysses-degree 2 --ring-degree 1"),
        ({"nproc_per_node": 2, "text_encoder_tp_degree": 4}, "text_encoder_tp_degree", 4, "1 or 2, or more ranks"),
        ({"nproc_per_node": 4, "rank_weights": "1,2"}, "rank_weights", "1,2", "4 positive numbers"),
        ({"nproc_per_node": 4, "tp_degree": 2, "rank_weights": "1,2,3,4"}, "rank_weights", "1,2,3,4", "1,1"),
        (
            {"nproc_per_node": 2, "text_encoder_tp_degree": 2, "stages": "denoise"},
            "text_encoder_tp_degree",
            2,
            "add encode_prompt to --stages",
        ),
        ({"nproc_per_node": 2, "shard_weights": True, "stages": "encode_prompt"}, "shard_weights", True, "add denoise"),
        ({"compile": True, "stages": "decode_video"}, "compile", True, "Leave --compile out"),
        ({"shard_weights": True}, "shard_weights", True, "--nproc-per-node 2"),
        ({"shard_weights": True, "tp_degree": 2}, "shard_weights", True, "--nproc-per-node 4"),
    ],
)
def test_a_layout_that_cannot_work_is_refused_with_those_that_can(
    tmp_path: Path, given: dict[str, Any], field: str, value: object, words: str
) -> None:
    error = refuse(tmp_path, model="/a", **given)
    assert (error.code, error.field, error.value) == ("config_conflict", field, value)
    assert words in (error.remedy or "")


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"ring_degree": 0}, "ring_degree"),
        ({"tp_degree": -1}, "tp_degree"),
        ({"ulysses_degree": 0}, "ulysses_degree"),
        ({"nproc_per_node": 8, "text_encoder_tp_degree": 3}, "text_encoder_tp_degree"),
        ({"rank_weights": "1,-1"}, "rank_weights"),
        ({"rank_weights": "1,0"}, "rank_weights"),
        ({"rank_weights": "1,nan"}, "rank_weights"),
        ({"rank_weights": "1,inf"}, "rank_weights"),
        ({"rank_weights": ""}, "rank_weights"),
        ({"rank_weights": "1;1"}, "rank_weights"),
        ({"nproc_per_node": 2, "rank_weights": "1,1e7"}, "rank_weights"),
        ({"nproc_per_node": 2, "rank_weights": "1,1e-7"}, "rank_weights"),
        ({"nproc_per_node": 2, "rank_weights": [1, 10**400]}, "rank_weights"),
        ({"nproc_per_node": 2, "rank_weights": [1, True]}, "rank_weights"),
        ({"nproc_per_node": 2, "rank_weights": {1: 2, 2: 1}}, "rank_weights"),
        ({"rank_weights": 2}, "rank_weights"),
        ({"max_pad_seq_len": 63}, "max_pad_seq_len"),
    ],
)
def test_a_parallel_option_out_of_its_range_is_refused(tmp_path: Path, given: dict[str, Any], field: str) -> None:
    error = refuse(tmp_path, model="/a", **given)
    assert (error.code, error.field) == ("config_bad_value", field)
    assert error.remedy


def test_a_long_list_of_working_layouts_is_cut_short(tmp_path: Path) -> None:
    remedy = refuse(tmp_path, model="/a", nproc_per_node=64, ring_degree=3).remedy or ""
    assert "Working layouts of 64 ranks: --ulysses-degree 64 --ring-degree 1 --tp-degree 1;" in remedy
    assert remedy.endswith("; and 10 more.")


@pytest.mark.parametrize(
    ("layout", "facts", "field", "words", "remedy"),
    [
        ((2, 3, 4), ModelFacts(heads=4), "tp_degree", "3 does not divide the transformer's 4 attention heads", "2;"),
        ((2, 3, 1), ModelFacts(heads=6, ffn_dim=64), "tp_degree", "64 feed-forward channels", "--tp-degree 2;"),
        ((2, 3, 1), ModelFacts(heads=4, ffn_dim=64), "tp_degree", "4 attention heads and 64 feed", "--tp-degree 2;"),
        ((4, 1, 4), ModelFacts(text_kv_heads=2), "text_encoder_tp_degree", "2 key and value heads", "Use 1 or 2."),
        ((4, 1, 4), ModelFacts(text_ffn_dim=66), "text_encoder_tp_degree", "66 feed-forward", "Use 1 or 2."),
    ],
)
def test_heads_and_channels_must_divide_among_the_ranks_that_share_layers(
    layout: tuple[int, int, int], facts: ModelFacts, field: str, words: str, remedy: str
) -> None:
    ulysses, tp, text = layout
    with pytest.raises(ConfigError) as caught:
        check_layout(ParallelOptions(ulysses_degree=ulysses, tp_degree=tp, text_encoder_tp_degree=text), facts)
    assert (caught.value.code, caught.value.field) == ("config_conflict", field)
    assert words in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert "--tp-degree 3" not in str(caught.value.remedy)


def test_a_layout_that_divides_all_of_it_passes() -> None:
    facts = ModelFacts(heads=4, ffn_dim=64, text_kv_heads=2, text_ffn_dim=66)
    check_layout(ParallelOptions(ulysses_degree=3, tp_degree=2, text_encoder_tp_degree=2), facts)
    check_layout(ParallelOptions(ulysses_degree=1, tp_degree=7, text_encoder_tp_degree=4), ModelFacts())


def test_a_remedy_names_no_layout_that_this_checkpoint_refuses(tiny_checkpoint: Path, tmp_path: Path) -> None:
    given: dict[str, Any] = {"nproc_per_node": 8, "ulysses_degree": 3, "tp_degree": 8}
    released = refuse(tmp_path, model="/a", **given).remedy or ""
    assert "--nproc-per-node 24" in released
    assert "--tp-degree 8" in released
    tiny = refuse(tmp_path, model=str(tiny_checkpoint), **given).remedy or ""
    assert "--nproc-per-node" not in tiny
    assert "--tp-degree 4" in tiny
    assert "--tp-degree 8" not in tiny


def test_the_layout_reaches_the_ranks() -> None:
    layout = ParallelOptions(
        ulysses_degree=2,
        ring_degree=3,
        tp_degree=2,
        text_encoder_tp_degree=4,
        rank_weights=(1.0, 0.1, 2.5, 1.0, 1.0, 1.0),
        shard_weights=True,
        compile=True,
    )
    plain = "--model m --nproc-per-node 12 --device cpu --dtype fp32 --stages denoise --run-dir r --link l"
    for given in (layout, ParallelOptions(ulysses_degree=12)):
        options, _ = parse_arguments([*plain.split(), "--data-timeout", "5", *_layout_flags(given)])
        assert RankOptions.from_json(options.to_json()).to_dict() == given.to_dict()


def test_tiles_that_cannot_be_are_refused_with_those_that_can(tmp_path: Path) -> None:
    error = refuse(tmp_path, model="/a", vae_tile=128, vae_tile_overlap=96)
    assert (error.code, error.field, error.value) == ("config_conflict", "vae_tile_overlap", 96)
    assert error.remedy == "Use 64 or less, or larger tiles."
    options = build(tmp_path, "vae_tile: 200\n", model="/a").vae
    with pytest.raises(ConfigError) as caught:
        check_tiles(options, ModelFacts())
    assert (caught.value.field, caught.value.value) == ("vae_tile", 200)
    assert caught.value.remedy == "Use a multiple of 16 from 32 to 4096, such as 192."
    check_tiles(VaeOptions(), ModelFacts())


def test_other_tiles_than_the_trained_ones_are_warned_of() -> None:
    assert tile_warnings(VaeOptions()) == ()
    (warning,) = tile_warnings(VaeOptions(vae_tile=512))
    assert warning.code == "untrained_tiles"
    assert "512" in warning.message
    assert "256 and 64" in warning.message


def test_the_options_of_the_vaes_reach_the_ranks(tmp_path: Path) -> None:
    text = "vae-resident: true\nvae_on_one_rank: true\ngather_workspace_mb: 7\nrelease-gather-workspace: true\n"
    plain = "--model m --nproc-per-node 1 --ulysses-degree 1 --device cpu --dtype fp32 --stages denoise --run-dir r"
    for given in (build(tmp_path, text, model="/a", vae_tile=512, vae_tile_overlap=32).vae, VaeOptions()):
        words = [*plain.split(), "--link", "l", "--data-timeout", "5", *_vae_flags(given)]
        options = RankOptions.from_json(parse_arguments(words)[0].to_json())
        assert {name: getattr(options, name) for name in vars(given)} == vars(given)


@pytest.mark.parametrize(
    ("rank", "one", "kept"),
    [
        (0, False, {"text_encoder", "transformer", "vae", "audio_vae"}),
        (1, False, {"text_encoder", "transformer", "vae"}),
        (2, False, {"transformer", "vae"}),
        (2, True, {"transformer"}),
    ],
)
def test_every_rank_holds_the_video_vae_unless_told_otherwise(rank: int, one: bool, kept: set[str]) -> None:
    needed = {"text_encoder", "transformer", "vae", "audio_vae"}
    assert kept_components(needed, rank=rank, text_encoder_ranks=2, vae_on_one_rank=one) == kept
    assert kept_components(("transformer",), rank=rank) == {"transformer"}


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
