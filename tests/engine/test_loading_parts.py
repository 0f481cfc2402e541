"""Loading a part of a checkpoint: by stage, by partition, from other folders; nothing else is opened."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import Checkpoint, open_checkpoint
from engine.contract.errors import ConfigError
from engine.models.bundle import Models
from engine.models.loading import load_models
from engine.rank_options import WEIGHTED, ModelOptions
from engine.stacks_shares import kept_components
from tests.support import stages

ENCODES = ("encode_prompt", "encode_media")
GENERATES = ("denoise", "decode_video", "decode_audio")
WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def copy(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def _load(checkpoint: Checkpoint) -> Models:
    return load_models(
        checkpoint,
        device=stages.CPU,
        dtype=torch.float32,
        keep=frozenset(checkpoint.components),
        on_bytes=lambda *_: None,
    )


def _keep_half(folder: Path, *prefixes: str) -> None:
    """Leave only the tensors of these children in the weights; an index goes on naming the file of the others."""
    path = folder / WEIGHTS
    tensors = load_file(path)
    kept = {name: value.clone() for name, value in tensors.items() if name.partition(".")[0] in prefixes}
    assert 0 < len(kept) < len(tensors)
    path.unlink()
    save_file(kept, folder / "kept.safetensors")
    table = {name: "kept.safetensors" if name in kept else "gone.safetensors" for name in tensors}
    (folder / f"{WEIGHTS}.index.json").write_text(json.dumps({"weight_map": table}))


def _told(folder: Path, **options: Any) -> ConfigError:
    chosen = {"stages": options.pop("stages")} if "stages" in options else {}
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(folder, options=ModelOptions(**options), **chosen)
    assert caught.value.remedy
    return caught.value


def test_an_engine_of_encoders_needs_only_the_text_encoder_and_the_encoder_halves(
    copy: Path, tiny_checkpoint: Path
) -> None:
    for name in ("transformer", "transformer_ref", "scheduler", "audio_scheduler"):
        shutil.rmtree(copy / name)
    _keep_half(copy / "vae", "encoder", "quant_conv")
    _keep_half(copy / "audio_vae", "encoder", "pre_block", "mean_proj", "logs_proj")
    checkpoint = open_checkpoint(copy, stages=ENCODES)
    assert set(checkpoint.components) == {"text_encoder", "vae", "audio_vae"}
    assert checkpoint.partitions == ()
    models, whole = _load(checkpoint), stages.load(tiny_checkpoint)
    assert (models.transformer, models.transformer_ref, models.vae.decoder, models.audio_vae.decoder) == (None,) * 4
    pixels, sound = torch.randn(1, 3, 1, 32, 32), torch.randn(2, 1, 8000)
    with torch.no_grad():
        for found, wanted in ((models.vae, whole.vae), (models.audio_vae, whole.audio_vae)):
            data = pixels if found is models.vae else sound
            assert torch.equal(found.encode(data).latent_dist.mode(), wanted.encode(data).latent_dist.mode())


def test_a_generator_needs_only_the_transformers_and_the_decoder_halves(copy: Path, tiny_checkpoint: Path) -> None:
    for name in ("text_encoder", "tokenizer", "processor"):
        shutil.rmtree(copy / name)
    _keep_half(copy / "vae", "decoder", "post_quant_conv")
    _keep_half(copy / "audio_vae", "decoder", "dec_in_proj")
    checkpoint = open_checkpoint(copy, stages=GENERATES)
    assert set(checkpoint.components) == {"transformer", "transformer_ref", "vae", "audio_vae"}
    models, whole = _load(checkpoint), stages.load(tiny_checkpoint)
    assert (models.text_encoder, models.tokenizer, models.vae.encoder, models.audio_vae.encoder) == (None,) * 4
    latents = torch.randn(1, 24, 7, 2, 2)
    with torch.no_grad():
        assert torch.equal(models.vae.decode(latents).sample, whole.vae.decode(latents).sample)


def test_the_parts_add_up_to_the_whole(tiny_checkpoint: Path) -> None:
    def read(*served: str) -> int:
        return sum(component.bytes for component in open_checkpoint(tiny_checkpoint, stages=served).components.values())

    assert read(*ENCODES) + read(*GENERATES) == read(*ENCODES, *GENERATES)


def test_a_rank_that_does_not_encode_reads_what_decodes_alone(tiny_checkpoint: Path) -> None:
    every = open_checkpoint(tiny_checkpoint)
    models, whole = _load(every.without("encode_media")), stages.load(tiny_checkpoint)
    assert (models.vae.encoder, models.vae.quant_conv, models.audio_vae.encoder) == (None,) * 3
    latents = torch.randn(1, 24, 7, 2, 2)
    with torch.no_grad():
        assert torch.equal(models.vae.decode(latents).sample, whole.vae.decode(latents).sample)
    # Where nothing of a component is left, it is not built.
    assert set(open_checkpoint(tiny_checkpoint, stages=ENCODES).without("encode_media").components) == {"text_encoder"}


@pytest.mark.parametrize("asked", [("transformer",), ("transformer_ref",), ("transformer", "transformer_ref")])
def test_only_the_chosen_partitions_are_needed(copy: Path, asked: tuple[str, ...]) -> None:
    for name in {"transformer", "transformer_ref"} - {*asked}:
        shutil.rmtree(copy / name)
    checkpoint = open_checkpoint(copy, stages=GENERATES, options=ModelOptions(partitions=asked))
    assert checkpoint.partitions == asked
    models = _load(checkpoint)
    assert tuple(name for name in ("transformer", "transformer_ref") if getattr(models, name) is not None) == asked


def test_without_a_choice_the_partitions_that_are_there_are_loaded(copy: Path) -> None:
    shutil.rmtree(copy / "transformer_ref")
    assert open_checkpoint(copy).partitions == ("transformer",)


def test_a_chosen_partition_that_is_not_there_is_told(copy: Path) -> None:
    shutil.rmtree(copy / "transformer_ref")
    error = _told(copy, partitions=("transformer", "transformer_ref"))
    assert error.code == "checkpoint_missing"
    assert "transformer_ref" in error.message


def test_partitions_without_denoise_are_refused(tiny_checkpoint: Path) -> None:
    error = _told(tiny_checkpoint, stages=ENCODES, partitions=("transformer",))
    assert (error.code, error.field) == ("config_conflict", "partitions")


def test_a_partition_of_another_model_is_refused(copy: Path) -> None:
    path = copy / "transformer_ref" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "text_dim": 64}))
    error = _told(copy)
    assert (error.code, error.field) == ("checkpoint_invalid", "transformer_ref/config.json")


def test_a_component_can_come_from_another_folder(copy: Path, tmp_path: Path, tiny_checkpoint: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    (copy / "transformer_ref").rename(elsewhere)
    shutil.rmtree(copy / "transformer")
    shutil.move(copy / "tokenizer", tmp_path / "words")
    dirs = {"transformer": str(elsewhere), "tokenizer": str(tmp_path / "words")}
    checkpoint = open_checkpoint(copy, options=ModelOptions(component_dirs=dirs))
    assert checkpoint.partitions == ("transformer",)
    assert checkpoint.count_tokens("boat", limit=10) == 4
    models, whole = _load(checkpoint), stages.load(tiny_checkpoint, keep=frozenset({"transformer_ref"}))
    wanted = whole.transformer_ref.state_dict()
    assert all(torch.equal(value, wanted[name]) for name, value in models.transformer.state_dict().items())


@pytest.mark.parametrize(
    ("served", "name"),
    [(ENCODES, "transformer"), (GENERATES, "text_encoder"), (GENERATES, "processor"), (("encode_prompt",), "vae")],
)
def test_a_folder_for_a_component_that_is_switched_off_is_refused(
    tiny_checkpoint: Path, served: tuple[str, ...], name: str
) -> None:
    error = _told(tiny_checkpoint, stages=served, component_dirs={name: str(tiny_checkpoint / name)})
    assert (error.code, error.field) == ("config_conflict", "component_dir")
    assert name in str(error.value)
    assert ",".join(served) in error.message


def test_a_folder_for_a_component_that_does_not_exist_is_told(tiny_checkpoint: Path, tmp_path: Path) -> None:
    error = _told(tiny_checkpoint, component_dirs={"vae": str(tmp_path / "nowhere")})
    assert (error.code, error.field, error.value) == (
        "checkpoint_missing",
        "component_dir",
        str(tmp_path / "nowhere"),
    )


def test_every_rank_holds_both_partitions_and_the_first_one_the_rest() -> None:
    assert kept_components(WEIGHTED, rank=0) == set(WEIGHTED)
    assert kept_components(WEIGHTED, rank=1) == {"transformer", "transformer_ref", "vae"}
    assert kept_components(WEIGHTED, rank=1, vae_on_one_rank=True) == {"transformer", "transformer_ref"}
    assert kept_components(WEIGHTED, rank=1, text_encoder_ranks=2) >= {"text_encoder"}
    assert kept_components(("audio_vae",), rank=1) == set()
