"""The text encoder's processor, and the tiny checkpoint's eyes: with torchvision, and without it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from engine.contract.errors import RequestError
from engine.packages import import_package, is_installed
from tests.support import stages
from tests.support.side_folder import ROOT, with_media_libraries

_PROGRAM = """
import json, sys
import numpy as np
import torch
from PIL import Image
from pathlib import Path
from engine.checkpoint import open_checkpoint
from engine.models.processor import load_processor
from engine.rank_options import ModelOptions
from tests.support import stages

torch.set_num_threads(1)
models = stages.load(Path(sys.argv[1]), keep=frozenset({"text_encoder"}))
noise = np.random.default_rng(0).integers(0, 256, (2, 64, 96, 3), dtype=np.uint8)


def rows(picture):
    vision = models.processor.image_processor(images=[Image.fromarray(picture)], return_tensors="pt")
    pads = int(vision["image_grid_thw"].prod()) // 4
    convert = models.tokenizer.convert_tokens_to_ids
    ids = [convert("<|vision_start|>"), *[convert("<|image_pad|>")] * pads, convert("<|vision_end|>"), 1, 2, 3]
    with torch.no_grad():
        return pads, models.text_encoder(
            input_ids=torch.tensor([ids]),
            mm_token_type_ids=torch.tensor(models.processor.create_mm_token_type_ids([ids])),
            pixel_values=vision["pixel_values"],
            image_grid_thw=vision["image_grid_thw"],
            use_cache=False,
        ).last_hidden_state[0]


(pads, first), (_, other) = rows(noise[0]), rows(noise[1])
clip = models.processor.video_processor(videos=[noise.repeat(2, 0)], do_sample_frames=False, return_tensors="pt")
trusting = ModelOptions(component_dirs={"processor": sys.argv[2]}, own_code=True)
own = load_processor(open_checkpoint(sys.argv[1], options=trusting).small["processor"])
print(json.dumps({
    "own": [type(own).__name__, own.image_processor.merge_size],
    "pads": pads,
    "pad_rows_moved": float((first - other)[1 : pads + 1].abs().mean() / first.abs().mean()),
    "text_rows_moved": float((first - other)[-3:].abs().mean() / first.abs().mean()),
    "clip": clip["video_grid_thw"].tolist(),
}))
"""


@pytest.fixture(scope="module")
def found(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the program saw, in a process that has torchvision."""
    scratch = tmp_path_factory.mktemp("own")
    own = Path(shutil.copytree(tiny_checkpoint / "processor", scratch / "processor"))
    (own / "own.py").write_text(
        "from transformers import Qwen3VLProcessor\n\n\nclass Own(Qwen3VLProcessor):\n    pass\n"
    )
    config = json.loads((own / "processor_config.json").read_text())
    (own / "processor_config.json").write_text(json.dumps({**config, "auto_map": {"AutoProcessor": "own.Own"}}))
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(tiny_checkpoint), str(own)],
        check=True,
        stdout=subprocess.PIPE,
        timeout=200,
        cwd=ROOT,
        env={**with_media_libraries(), "HF_MODULES_CACHE": str(scratch / "modules")},
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_the_processor_feeds_the_vision_tower_and_what_is_seen_reaches_every_row(found: dict[str, Any]) -> None:
    assert found["pads"] > 1
    assert found["clip"][0][0] == 2
    assert found["pad_rows_moved"] > 0.05
    assert found["text_rows_moved"] > 0.01


def test_a_processor_of_trusted_code_is_the_one_that_runs(found: dict[str, Any]) -> None:
    assert found["own"] == ["Own", 2]


def test_without_torchvision_the_engine_loads_and_a_picture_is_refused_with_what_to_install(
    tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchvision", None)
    assert not is_installed("torchvision")
    models = stages.load(tiny_checkpoint, keep=frozenset())
    with pytest.raises(RequestError) as caught:
        _ = models.processor
    assert (caught.value.code, caught.value.value) == ("missing_package", "torchvision")
    assert "install" in str(caught.value.remedy)


def test_a_package_that_does_not_load_is_told_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torchaudio.py").write_text("raise OSError('libcudart.so.13: not found')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torchaudio", raising=False)
    with pytest.raises(RequestError, match="libcudart") as caught:
        import_package("torchaudio", field="request.guides[0].audio")
    assert (caught.value.code, caught.value.field) == ("missing_package", "request.guides[0].audio")
