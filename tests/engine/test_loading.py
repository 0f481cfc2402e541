"""Opening and loading checkpoints: what is read, and how each kind of damage is told."""

from __future__ import annotations

import json
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.checkpoint import open_checkpoint
from engine.contract.errors import ConfigError
from engine.models.loading import load_models
from tests.support import stages

WEIGHTS = "diffusion_pytorch_model.safetensors"


@pytest.fixture
def copy(tmp_path: Path, tiny_checkpoint: Path) -> Path:
    """Return a copy that a test may damage."""
    return Path(shutil.copytree(tiny_checkpoint, tmp_path / "model"))


def _edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _edit_weights(path: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = {name: value.clone() for name, value in load_file(path).items()}
    change(tensors)
    save_file(tensors, path)


def _shard_text_encoder(folder: Path) -> Path:
    """Split the text encoder in two files, the second holding only what is never read; return that one."""
    path = folder / "text_encoder" / "model.safetensors"
    tensors = load_file(path)
    unread = ("lm_head.", "model.language_model.norm.", "model.language_model.layers.50.")
    second = {name: value for name, value in tensors.items() if name.startswith(unread)}
    first = {name: value for name, value in tensors.items() if name not in second}
    assert len(second) > 3
    names = {"model-00001-of-00002.safetensors": first, "model-00002-of-00002.safetensors": second}
    for name, part in names.items():
        save_file({key: value.clone() for key, value in part.items()}, path.parent / name)
    table = {key: name for name, part in names.items() for key in part}
    (path.parent / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": table}))
    path.unlink()
    return path.parent / "model-00002-of-00002.safetensors"


def _told(folder: Path) -> ConfigError:
    """Return the error of opening ``folder``: before any rank starts."""
    with pytest.raises(ConfigError) as caught:
        open_checkpoint(folder)
    assert caught.value.remedy
    return caught.value


def _told_loading(folder: Path) -> ConfigError:
    """Return the error of loading ``folder``, which opens."""
    open_checkpoint(folder)
    with pytest.raises(ConfigError) as caught:
        stages.load(folder)
    assert caught.value.remedy
    return caught.value


def test_the_text_encoder_gives_hidden_state_50_of_the_whole_model(tiny_checkpoint: Path) -> None:
    from transformers import Qwen3VLForConditionalGeneration

    whole = Qwen3VLForConditionalGeneration.from_pretrained(tiny_checkpoint / "text_encoder").model.eval()
    cut = stages.load(tiny_checkpoint, keep=frozenset({"text_encoder"})).text_encoder
    ids = torch.arange(20)[None]
    with torch.no_grad():
        wanted = whole(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
        state = cut(input_ids=ids, use_cache=False).last_hidden_state
    assert torch.equal(state, wanted[50])
    assert not torch.equal(state, wanted[49])
    assert not torch.equal(state, wanted[51])


@pytest.mark.parametrize("garbled", [True, False])
def test_layers_after_the_50th_and_the_head_are_never_read(copy: Path, tiny_checkpoint: Path, garbled: bool) -> None:
    unread = _shard_text_encoder(copy)
    if garbled:
        unread.write_bytes(b"not safetensors")
    else:
        unread.unlink()
    encoders = [
        stages.load(folder, keep=frozenset({"text_encoder"})).text_encoder for folder in (copy, tiny_checkpoint)
    ]
    states = [encoder.state_dict() for encoder in encoders]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(value, states[1][name]) for name, value in states[0].items())


def test_only_the_kept_components_are_read_and_every_byte_is_reported(tiny_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint)
    seen: list[tuple[str, int, int]] = []
    models = load_models(
        checkpoint, device=stages.CPU, dtype=torch.float32, keep=frozenset({"transformer", "vae"}),
        on_bytes=lambda *progress: seen.append(progress),
    )  # fmt: skip
    assert models.text_encoder is None
    assert models.audio_vae is None
    total = checkpoint.components["transformer"].bytes + checkpoint.components["vae"].bytes
    assert [progress[0] for progress in seen] == sorted(
        (progress[0] for progress in seen), key=("transformer", "vae").index
    )
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert (seen[-1][1], seen[-1][2]) == (total, total)
    assert len(seen) == len(checkpoint.components["transformer"].tensors) + len(checkpoint.components["vae"].tensors)


def test_loaded_models_are_ready_for_inference_and_nothing_is_left_on_meta(tiny_checkpoint: Path) -> None:
    models = stages.load(tiny_checkpoint)
    for name in ("text_encoder", "transformer", "vae", "audio_vae"):
        model = getattr(models, name)
        assert not model.training
        assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {"cpu"}
        assert not any(parameter.requires_grad for parameter in model.parameters())


def test_tokens_are_counted_as_the_tokenizer_makes_them(tiny_checkpoint: Path) -> None:
    prompt = "naïve café <|vision_start|> 你好 \n"
    models = stages.load(tiny_checkpoint, keep=frozenset())
    ids = models.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    assert open_checkpoint(tiny_checkpoint).count_tokens(prompt, limit=1000) == len(ids)


def test_a_prompt_too_long_by_its_bytes_is_not_tokenized(tiny_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint)
    prompt = "boat " * 10_000
    known = checkpoint.count_tokens(prompt, limit=10**6)
    fewest = checkpoint.count_tokens(prompt, limit=64)
    assert 64 < fewest < known


def test_other_threads_run_while_a_prompt_is_tokenized(tiny_checkpoint: Path) -> None:
    checkpoint = open_checkpoint(tiny_checkpoint)
    checkpoint.count_tokens("boat", limit=64)
    counting = threading.Thread(target=checkpoint.count_tokens, args=("boat " * 100_000,), kwargs={"limit": 10**6})
    counting.start()
    turns = 0
    while counting.is_alive():
        time.sleep(0.001)
        turns += 1
    # With the interpreter's lock held for the whole of it there are one or two.
    assert turns > 5


def test_a_missing_folder_is_told(tmp_path: Path) -> None:
    error = _told(tmp_path / "nowhere")
    assert (error.code, error.value) == ("checkpoint_missing", str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    "name",
    [
        "transformer",
        "vae",
        "audio_vae",
        "text_encoder",
        "tokenizer",
        "scheduler",
        "audio_scheduler",
        "modular_model_index.json",
    ],
)
def test_a_missing_component_is_named(copy: Path, name: str) -> None:
    target = copy / name
    shutil.rmtree(target) if target.is_dir() else target.unlink()
    error = _told(copy)
    assert error.code == "checkpoint_missing"
    assert name in error.message


def test_only_what_the_served_stages_need_is_required(copy: Path) -> None:
    for name in ("transformer", "transformer_ref", "vae", "audio_vae", "scheduler", "audio_scheduler", "processor"):
        shutil.rmtree(copy / name)
    checkpoint = open_checkpoint(copy, stages=("encode_prompt",))
    assert list(checkpoint.components) == ["text_encoder"]
    assert checkpoint.partitions == ()
    assert checkpoint.facts.text_dim == 32
    models = load_models(
        checkpoint, device=stages.CPU, dtype=torch.float32, keep=frozenset({"text_encoder"}), on_bytes=lambda *_: None
    )
    assert models.scheduler is None


def test_broken_json_is_told_with_its_file(copy: Path) -> None:
    (copy / "vae" / "config.json").write_text('{"latent_channels": 24')
    error = _told(copy)
    assert (error.code, error.field) == ("checkpoint_invalid", "vae/config.json")


@pytest.mark.parametrize("keep", [-1, 100, 7])
def test_a_cut_file_is_told_with_its_name(copy: Path, keep: int) -> None:
    path = copy / "transformer" / WEIGHTS
    path.write_bytes(path.read_bytes()[:keep])
    error = _told(copy)
    assert (error.code, error.field) == ("checkpoint_invalid", f"transformer/{WEIGHTS}")


def test_an_index_that_names_an_absent_file_is_told(copy: Path) -> None:
    _shard_text_encoder(copy)
    (copy / "text_encoder" / "model-00001-of-00002.safetensors").unlink()
    error = _told(copy)
    assert error.code == "checkpoint_missing"
    assert "model-00001-of-00002.safetensors" in error.message


def test_an_index_that_leads_out_of_its_folder_is_refused(copy: Path) -> None:
    _shard_text_encoder(copy)
    path = copy / "text_encoder" / "model.safetensors.index.json"
    _edit_json(path, lambda index: index["weight_map"].update({"model.visual.x": f"../vae/{WEIGHTS}"}))
    assert _told(copy).code == "checkpoint_missing"


def test_weights_only_in_pickles_are_refused(copy: Path) -> None:
    path = copy / "vae" / WEIGHTS
    path.rename(path.with_name("diffusion_pytorch_model.bin"))
    error = _told(copy)
    assert (error.code, error.value) == ("checkpoint_invalid", "diffusion_pytorch_model.bin")
    assert "safetensors" in str(error.remedy)


def test_a_missing_tensor_is_named(copy: Path) -> None:
    _edit_weights(copy / "transformer" / WEIGHTS, lambda tensors: tensors.pop("proj_out.bias"))
    error = _told_loading(copy)
    assert (error.code, error.value) == ("checkpoint_invalid", "proj_out.bias")


def test_a_tensor_too_many_is_named_with_its_file(copy: Path) -> None:
    _edit_weights(copy / "vae" / WEIGHTS, lambda tensors: tensors.update({"decoder.odd": torch.zeros(1)}))
    error = _told_loading(copy)
    assert (error.code, error.value, error.field) == ("checkpoint_invalid", "decoder.odd", f"vae/{WEIGHTS}")


def test_a_tensor_of_another_shape_is_named_with_its_file(copy: Path) -> None:
    _edit_weights(copy / "transformer" / WEIGHTS, lambda tensors: tensors.update({"proj_out.bias": torch.zeros(7)}))
    error = _told_loading(copy)
    assert (error.value, error.field) == ("proj_out.bias", f"transformer/{WEIGHTS}")
    assert "[7]" in error.message


def test_a_quantised_tensor_is_refused_with_its_name(copy: Path) -> None:
    def quantise(tensors: dict[str, torch.Tensor]) -> None:
        tensors["proj_out.weight"] = tensors["proj_out.weight"].to(torch.float8_e4m3fn)

    _edit_weights(copy / "transformer" / WEIGHTS, quantise)
    error = _told(copy)
    assert (error.code, error.value) == ("checkpoint_invalid", "proj_out.weight")
    assert "F8_E4M3" in error.message


def test_a_text_encoder_cut_to_50_layers_is_refused(copy: Path) -> None:
    _edit_json(copy / "text_encoder" / "config.json", lambda config: config["text_config"].update(num_hidden_layers=50))
    error = _told(copy)
    assert (error.code, error.value, error.field) == ("checkpoint_invalid", 50, "text_encoder/config.json")


def test_components_of_different_models_are_refused(copy: Path) -> None:
    _edit_json(copy / "vae" / "config.json", lambda config: config.update(latent_channels=16))
    error = _told(copy)
    assert error.code == "checkpoint_invalid"
    assert "latent_channels" in error.message


@pytest.mark.parametrize("value", ["4", 0, 4.0, True])
def test_a_fact_that_is_no_whole_number_is_refused(copy: Path, value: object) -> None:
    _edit_json(copy / "transformer/config.json", lambda config: config.update(ffn_dim=value))
    error = _told(copy)
    assert (error.code, error.field, error.value) == ("checkpoint_invalid", "transformer/config.json", value)
    assert "ffn_dim" in error.message


def test_a_vae_of_another_clip_length_is_refused(copy: Path) -> None:
    _edit_json(copy / "vae" / "config.json", lambda config: config.update(clip_length=21))
    error = _told(copy)
    assert (error.value, error.field) == (21, "vae/config.json")


def test_a_configuration_that_builds_no_model_is_told(copy: Path) -> None:
    _edit_json(copy / "audio_vae" / "config.json", lambda config: config.update(decoder_rates=[2, 2]))
    error = _told_loading(copy)
    assert (error.code, error.field) == ("checkpoint_invalid", "audio_vae/config.json")
