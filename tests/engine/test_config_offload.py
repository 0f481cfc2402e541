"""The options that say where weights live, and the presets."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest

from engine import config_devices
from engine.cli.serve import add_arguments
from engine.config import OPTIONS, EngineConfig, build_config, merge_options
from engine.config_devices import Devices, memory_to_use
from engine.config_presets import preset_names
from engine.contract.errors import ConfigError
from engine.rank_options import OffloadOptions
from engine.stacks import FAMILIES

FAMILY_NAMES = tuple(FAMILIES)


def on_the_command_line(*words: str) -> dict[str, Any]:
    """Return what the command line gives, by option."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    arguments = parser.parse_args(["--model", "/m", "--device", "cpu", *words])
    return {option.name: getattr(arguments, option.name) for option in OPTIONS if hasattr(arguments, option.name)}


def build(*words: str) -> EngineConfig:
    return build_config(on_the_command_line(*words))


@pytest.mark.parametrize(
    ("words", "families"),
    [
        ((), ()),
        (("--offload",), FAMILY_NAMES),
        (("--offload", "dit,text_encoder"), ("dit", "text_encoder")),
        (("--offload", "text_encoder"), ("text_encoder",)),
        (("--offload", "vae"), ("vae",)),
    ],
)
def test_offload_names_families_and_alone_means_all(words: tuple[str, ...], families: tuple[str, ...]) -> None:
    assert build(*words).offload.offload == families


@pytest.mark.parametrize(
    ("words", "field", "said"),
    [
        (("--offload", ""), "offload", "knows no ''"),
        (("--offload", "dit,text-encoder"), "offload", "Did you mean text_encoder"),
        (("--resident-blocks", "all"), "resident_blocks", "0 to 1000, or auto"),
        (("--resident-blocks", "-1"), "resident_blocks", "0 to 1000"),
        (("--block-storage", "fp4"), "block_storage", "fp8"),
        (("--gpu-memory", "0"), "gpu_memory", "0.001"),
        (("--resident-blocks", "3"), "resident_blocks", "Give --offload too"),
        (("--offload", "vae", "--resident-blocks", "auto"), "resident_blocks", "Give --offload too"),
        (("--offload", "--vae-resident"), "offload", "leave --vae-resident out"),
        (("--offload", "dit", "--shard-weights", "--nproc-per-node", "2"), "offload", "Leave --shard-weights out"),
    ],
)
def test_what_cannot_be_is_refused_with_field_and_remedy(words: tuple[str, ...], field: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build(*words)
    assert caught.value.field == field
    assert said in f"{caught.value.message} {caught.value.remedy}"


def test_an_empty_list_of_families_in_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("model: /m\ndevice: cpu\noffload: []\n")
    with pytest.raises(ConfigError) as caught:
        build_config({}, file)
    assert (caught.value.field, caught.value.value) == ("offload", "[]")


def test_resident_vaes_go_with_the_other_families() -> None:
    config = build("--offload", "dit,text_encoder", "--vae-resident")
    assert (config.vae.vae_resident, config.offload.offload) == (True, ("dit", "text_encoder"))


@pytest.mark.parametrize(("text", "blocks"), [("auto", None), ("7", 7), (7, 7), (0, 0)])
def test_resident_blocks_are_a_number_or_auto(tmp_path: Path, text: str | int, blocks: int | None) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text(f"model: /m\ndevice: cpu\noffload: [dit]\nresident_blocks: {text}\n")
    assert build_config({}, file).offload.resident_blocks == blocks


def test_the_options_reach_the_ranks_as_they_are() -> None:
    options = build("--offload", "dit", "--resident-blocks", "auto", "--gpu-memory", "23.5").offload
    assert OffloadOptions.from_dict(json.loads(json.dumps(options.to_dict()))) == options


def test_a_preset_stands_between_the_defaults_and_what_is_given(tmp_path: Path) -> None:
    file = tmp_path / "engine.yaml"
    file.write_text("gpu_memory: 20\nmax_queue: 3\n")
    values = merge_options({"max_queue": 5}, config_file=file, preset="2x24gb")
    assert values["nproc_per_node"] == 2
    assert (values["gpu_memory"], values["max_queue"], values["port"]) == (20, 5, 8190)


def test_every_preset_is_a_configuration() -> None:
    assert preset_names() == ["1x24gb", "2x24gb", "4x48gb", "8x80gb-resident"]
    for name in preset_names():
        config = build_config({"model": "/m", "device": "cpu"}, preset=name)
        assert config.nproc_per_node == int(name[0])
        assert config.offload.gpu_memory == float(name.split("gb")[0].split("x")[1])


def test_on_accelerators_the_budgets_are_what_there_is_unless_less_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    free = ((80_000_000_000, 81_000_000_000),) * 2
    monkeypatch.setattr("engine.config.find_devices", lambda wanted: Devices("cuda", 2, free))
    monkeypatch.setattr("engine.config.physical_memory", lambda: 256_000_000_000)
    assert build_config({"model": "/m"}).offload == OffloadOptions(gpu_memory=80.0, host_memory=256.0)
    given = build_config({"model": "/m", "gpu_memory": 20, "host_memory": 100}).offload
    assert (given.gpu_memory, given.host_memory) == (20.0, 100.0)
    monkeypatch.undo()
    assert build("--nproc-per-node", "2").offload == OffloadOptions()


GB = 10**9


@pytest.mark.parametrize(
    ("memory", "options", "budget", "told"),
    [
        ([(24, 24), (23, 24)], (2, None), 23, ""),
        ([(24, 24), (20, 24)], (2, None), 20, "20.0 GB of 24.0 GB are free on device 1: other programs hold the rest"),
        ([(24, 24), (20, 24)], (1, None), 24, ""),
        ([(20, 24)], (1, 18.0), 18, ""),
        ([(23, 24)], (1, 24.0), 24, "23.0 GB of 24.0 GB are free on device 0: less than --gpu-memory 24"),
        ([], (1, None), None, ""),
        ([], (1, 8.0), 8, ""),
    ],
)
def test_what_is_free_on_the_fullest_device_in_use_is_the_budget_and_what_others_hold_is_told(
    memory: list[tuple[int, int]],
    options: tuple[int, float | None],
    budget: int | None,
    told: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    devices = Devices("cuda", 2, tuple((free * GB, total * GB) for free, total in memory))
    found = memory_to_use(devices, ranks=options[0], given=options[1])
    assert found == (None if budget is None else budget * GB)
    assert (told in caplog.text) if told else not caplog.text


def test_torch_is_asked_what_is_free_on_each_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text(
        "class accelerator:\n"
        "    current_accelerator = lambda check_available: type('device', (), {'type': 'cuda'})\n"
        "    device_count = lambda: 2\n"
        "    get_memory_info = lambda index: (20 + index, 24)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = config_devices._ask_torch()
    assert found == Devices("cuda", 2, ((20, 24), (21, 24)))
    assert found.smallest == 24


def test_an_unknown_preset_is_refused_with_those_there_are() -> None:
    with pytest.raises(ConfigError) as caught:
        build_config({"model": "/m"}, preset="2x24")
    assert (caught.value.field, caught.value.value) == ("preset", "2x24")
    assert "Did you mean 2x24gb?" in str(caught.value.remedy)
