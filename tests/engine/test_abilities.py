"""What an engine cannot do for lack of a partition, a processor or a package is said before a rank wakes."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from engine import packages
from engine.checkpoint import Checkpoint, open_checkpoint
from engine.config import build_config
from engine.contract.errors import RequestError
from engine.contract.requests import parse_request
from engine.controller.abilities import check_abilities
from engine.controller.controller import Controller
from engine.controller.folder import open_run_folder

PICTURE = {"part": "picture"}
REFERENCE = {"kind": "image", "media": PICTURE}


@pytest.fixture
def checkpoint(tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> Checkpoint:
    """Return the tiny checkpoint, in an environment that has every package."""
    monkeypatch.setattr(packages, "is_installed", lambda _: True)
    return open_checkpoint(tiny_checkpoint)


def _refused(checkpoint: Checkpoint, **request: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check_abilities(parse_request(request), checkpoint)
    assert caught.value.remedy
    return caught.value


@pytest.mark.parametrize(
    ("loaded", "references"), [("transformer", [{"kind": "image"}]), ("transformer_ref", [])], ids=["ref", "plain"]
)
def test_a_video_whose_partition_is_not_loaded_is_refused(
    checkpoint: Checkpoint, loaded: str, references: list[dict[str, Any]]
) -> None:
    partial = dataclasses.replace(checkpoint, partitions=(loaded,))
    size = {"width": 64, "height": 64, "frames": 22}
    error = _refused(partial, task="denoise", references=references, **size)
    assert (error.code, error.value, error.status) == ("partition_not_loaded", loaded, 422)
    check_abilities(parse_request({"task": "denoise", "references": references, **size}), checkpoint)


async def test_the_controller_refuses_before_it_queues(checkpoint: Checkpoint, tmp_path: Path) -> None:
    config = build_config({"model": str(checkpoint.folder), "device": "cpu", "partitions": ["transformer"]})
    opened = open_checkpoint(config.model, stages=config.stages, options=config.model_options)
    folder = open_run_folder(tmp_path, room=0)
    controller = Controller(config, opened, folder)
    try:
        request = parse_request(
            {"task": "generate", "prompt": "a", "frames": 22, "width": 64, "height": 64, "references": [REFERENCE]}
        )
        with pytest.raises(RequestError) as caught:
            await controller.check(request, {"picture": {}})
        assert caught.value.code == "partition_not_loaded"
        assert controller.info()["partitions"] == ["transformer"]
    finally:
        folder.close()


def test_references_can_be_encoded_without_a_transformer(checkpoint: Checkpoint) -> None:
    encoders = dataclasses.replace(checkpoint, partitions=())
    check_abilities(parse_request({"task": "encode_prompt", "prompt": "a", "references": [REFERENCE]}), encoders)


@pytest.mark.parametrize(
    ("media", "field"),
    [
        ({"keyframes": [{"media": PICTURE}]}, "request.keyframes[0]"),
        ({"references": [{"kind": "audio", "media": PICTURE}, REFERENCE]}, "request.references[1]"),
    ],
)
def test_pictures_without_a_processor_or_torchvision_are_refused(
    checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, media: dict[str, Any], field: str
) -> None:
    small = {name: part for name, part in checkpoint.small.items() if name != "processor"}
    blind = dataclasses.replace(checkpoint, small=small)
    error = _refused(blind, task="generate", prompt="a", **media)
    assert (error.code, error.field) == ("wrong_model", field)
    monkeypatch.setattr(packages, "is_installed", lambda name: name != "torchvision")
    error = _refused(checkpoint, task="encode_prompt", prompt="a", **media)
    assert (error.code, error.field, error.value) == ("missing_package", field, "torchvision")


def test_sound_and_guides_need_no_eyes(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda _: False)
    media = {"references": [{"kind": "audio", "media": PICTURE}], "guides": [{"media": PICTURE}]}
    check_abilities(parse_request({"task": "generate", "prompt": "a", **media}), checkpoint)
