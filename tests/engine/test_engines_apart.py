"""Encoders on one engine, the generator on another: each reads its part; together they make what one engine makes."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from engine.checkpoint import open_checkpoint
from engine.client import EngineClient
from engine.contract.errors import RequestError
from tests.support.engine_process import EngineProcess

pytestmark = pytest.mark.ranks

ENCODES = ("encode_prompt", "encode_media")
GENERATES = ("denoise", "decode_video", "decode_audio")
SIZE = {"width": 64, "height": 64, "frames": 22}
SAMPLING = {**SIZE, "steps": 2, "seed": 7}


Apart = tuple[EngineProcess, EngineProcess]
"""The engine of encoders, and the one of the generator."""


@pytest.fixture(scope="module")
def apart(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apart]:
    """Return two engines; neither finds the other's components, and the generator no torchvision."""

    def make(name: str, stages: tuple[str, ...], absent: tuple[str, ...], *options: str, media: bool) -> EngineProcess:
        folder = tmp_path_factory.mktemp(name)
        shutil.copytree(tiny_checkpoint, folder / "model", ignore=shutil.ignore_patterns(*absent))
        chosen = ("--stages", ",".join(stages), *options)
        return EngineProcess(folder / "model", folder, ranks=2, options=chosen, media=media)

    vae = ("--component-dir", f"vae={tiny_checkpoint / 'vae'}")
    with (
        make("encoders", ENCODES, ("transformer*", "*scheduler"), media=True) as encoders,
        make("generator", GENERATES, ("text_encoder", "tokenizer", "processor", "vae"), *vae, media=False) as generator,
    ):
        yield encoders, generator


@pytest.fixture(scope="module")
def media(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return parts: a picture, a clip of two seconds and a sound of as many."""
    folder = tmp_path_factory.mktemp("media")
    generator = torch.Generator().manual_seed(0)

    def write(name: str, **tensors: torch.Tensor) -> Path:
        save_file(tensors, folder / name)
        return folder / name

    pixels = torch.randint(0, 256, (48, 64, 96, 3), generator=generator, dtype=torch.uint8)
    return {
        "picture": write("picture", frames=pixels[:1].clone()),
        "clip": write("clip", frames=pixels),
        "sound": write("sound", waveform=torch.rand(2, 64_000, generator=generator) - 0.5),
    }


FRAMES, AUDIO = {"format": "frames"}, {"format": "audio", "sample_rate": 32_000}
KEYFRAMES = [{"media": {"part": "picture", **FRAMES}, "at": "last"}]
REFERENCES = [
    {"kind": "image", "media": {"part": "picture", **FRAMES}},
    {"kind": "video", "media": {"part": "clip", **FRAMES}, "audio": {"part": "sound", **AUDIO}},
]
GUIDES = [{"media": {"part": "picture", **FRAMES}, "audio": {"part": "sound", **AUDIO}, "frame": 5}]


def _parts(media: Mapping[str, Path], request: Mapping[str, Any]) -> dict[str, Path]:
    return {name: path for name, path in media.items() if f"'part': '{name}'" in str(request)}


async def _run(
    url: str, request: Mapping[str, Any], inputs: Mapping[str, Path], folder: Path
) -> tuple[dict[str, Path], dict[str, Any]]:
    """Run a job; return the first piece of each output, and the facts of its end."""
    events: list[Mapping[str, Any]] = []
    async with EngineClient(url) as client:
        outcome = await client.run(request, folder=folder, inputs=inputs, on_event=events.append)
    return {name: files[0] for name, files in outcome.outputs.items()}, events[-1]["facts"]


@pytest.mark.parametrize(
    "shown",
    [{}, {"keyframes": KEYFRAMES}, {"references": REFERENCES}, {"references": REFERENCES, "guides": GUIDES}],
    ids=["text", "keyframes", "references", "references and guides"],
)
async def test_two_engines_make_what_one_makes(
    engine: EngineProcess, apart: Apart, media: dict[str, Path], tmp_path: Path, shown: dict[str, Any]
) -> None:
    encoders, generator = apart
    whole = {"task": "generate", "prompt": "a boat", "container": "tensors", **SAMPLING, **shown}
    wanted, _ = await _run(engine.url, whole, _parts(media, whole), tmp_path)

    words = {name: value for name, value in shown.items() if name != "guides"}
    prompt = {"task": "encode_prompt", "prompt": "a boat", **SIZE, **words}
    encoded, facts = await _run(encoders.url, prompt, _parts(media, prompt), tmp_path)
    conditioning, conditions = load_file(encoded["conditioning"]), facts.get("conditions", [])
    if "guides" in shown:
        guides = {"task": "encode_media", **SIZE, "guides": shown["guides"]}
        guided, found = await _run(encoders.url, guides, _parts(media, guides), tmp_path)
        conditioning |= load_file(guided["conditioning"])
        conditions = found["conditions"]
    joined = tmp_path / "joined"
    save_file(conditioning, joined)
    held = {"conditions": conditions, "references": facts.get("references", [])}
    denoise = {"task": "denoise", **SAMPLING, **{name: entries for name, entries in held.items() if entries}}
    sampled, _ = await _run(generator.url, denoise, {"conditioning": joined}, tmp_path)
    decoded, _ = await _run(generator.url, {"task": "decode"}, {"latents": sampled["latents"]}, tmp_path)

    for name, found_file in {**sampled, **decoded}.items():
        assert found_file.read_bytes() == wanted[name].read_bytes(), name
    with safe_open(wanted["latents"], framework="pt") as latents:
        assert latents.get_tensor("video").isfinite().all()


def test_each_engine_holds_its_part_alone(engine: EngineProcess, apart: Apart, tiny_checkpoint: Path) -> None:
    infos = [found.get("/v1/info") for found in (engine, *apart)]
    both = ["transformer", "transformer_ref"]
    assert [info["partitions"] for info in infos] == [both, [], both]
    whole, encoders, generator = (info["weight_bytes"] for info in infos)
    assert [sum(held) for held in zip(encoders, generator, strict=True)] == whole
    # Parameters alone count, not the few stored buffers.
    parts = open_checkpoint(tiny_checkpoint, stages=ENCODES).components
    assert 0.99 < encoders[0] / sum(part.bytes for part in parts.values()) <= 1
    # The other rank encodes pictures too, with its half of the video VAE.
    assert 0.98 < encoders[1] / parts["vae"].bytes <= 1


async def test_what_an_engine_does_not_serve_is_refused_by_name(
    apart: Apart, media: dict[str, Path], tmp_path: Path
) -> None:
    encoders, generator = apart
    for url, request, stage in (
        (encoders.url, {"task": "generate", "prompt": "a", **SAMPLING}, "denoise"),
        (generator.url, {"task": "encode_prompt", "prompt": "a"}, "encode_prompt"),
        (generator.url, {"task": "encode_media", **SIZE, "guides": GUIDES}, "encode_media"),
    ):
        with pytest.raises(RequestError) as caught:
            await _run(url, request, _parts(media, request), tmp_path)
        assert caught.value.code == "stage_not_served"
        assert f"'{stage}'" in caught.value.message
