"""A complete random MiniMax-H3 checkpoint, made offline: for tests, for ``demo`` and for a newcomer's first run.

Promise: every component of the released layout, true to its geometry (24 and 32 latent channels, patch 1x2x2, VAE /16
and /4, 17-frame clips, 51 text layers, Qwen's special tokens), a few megabytes, the same bytes for the same seed; and
sensitive: a lost, masked or misplaced condition moves the result far above rounding. It makes noise, not pictures.
A folder is written aside and renamed, so a half-written one is never used.
Raises `ConfigError` ``config_bad_value`` for an unknown preset or a folder that holds something else.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers.utils import logging as transformers_logging

from .checkpoint import open_checkpoint
from .checkpoint_facts import TEXT_LAYERS
from .contract.errors import ConfigError
from .tiny_weights import sensitise_audio_vae, sensitise_text_encoder, sensitise_transformer, sensitise_vae

MARKER = "tiny_checkpoint.json"
"""The file that says a folder was made here (and may be made again)."""
LATENT_CHANNELS = 24
AUDIO_LATENT_CHANNELS = 32
_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)


@dataclass(frozen=True)
class Preset:
    """Widths of a tiny checkpoint.

    Attributes:
        heads, head_dim, hidden, layers, refiner, ffn, text_dim, rope, time: of the transformer; as in the released
            one, ``hidden`` is 3/4 of ``heads`` x ``head_dim``.
        vae_width: channels of the video VAE's convolutions.
        short_edge, max_pixels: of the default canvas.
    """

    heads: int
    head_dim: int
    hidden: int
    layers: int
    refiner: int
    ffn: int
    text_dim: int
    rope: int
    time: int
    vae_width: int
    short_edge: int
    max_pixels: int


PRESETS: dict[str, Preset] = {
    "tiny": Preset(4, 16, 48, 2, 1, 64, 32, 2, 32, 8, 64, 64 * 128),
    "small": Preset(8, 32, 192, 4, 2, 384, 64, 4, 64, 16, 128, 128 * 256),
}


def make_tiny(folder: str | Path, *, preset: str = "tiny", seed: int = 0) -> dict[str, Any]:
    """Write the checkpoint into ``folder``, in place of a tiny one that is there.

    Returns:
        preset, seed, bytes, and the model facts.

    Raises:
        ConfigError: ``config_bad_value``.
    """
    folder = Path(folder).absolute()
    if preset not in PRESETS:
        raise ConfigError(
            "config_bad_value",
            f"There is no preset {preset!r}.",
            field="preset",
            value=preset,
            remedy=f"Use one of {', '.join(PRESETS)}.",
        )
    _check_target(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh = scratch / "new"
        _write(fresh, PRESETS[preset], seed)
        facts = open_checkpoint(fresh).facts
        size = sum(file.stat().st_size for file in fresh.rglob("*") if file.is_file())
        result = {"preset": preset, "seed": seed, "bytes": size, **facts.to_dict()}
        _write_json(fresh / MARKER, result)
        if folder.exists():
            folder.rename(scratch / "old")
        fresh.rename(folder)
    finally:
        shutil.rmtree(scratch)
    return result


def _check_target(folder: Path) -> None:
    if folder.exists() and not (
        folder.is_dir() and ((folder / MARKER).is_file() or next(folder.iterdir(), None) is None)
    ):
        raise ConfigError(
            "config_bad_value",
            "The folder is not empty and holds no tiny checkpoint.",
            field="folder",
            value=str(folder),
            remedy="Name a new or empty folder.",
        )


def _write(folder: Path, preset: Preset, seed: int) -> None:
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # torch's old weight_norm, which the audio VAE uses, warns of its successor.
        warnings.simplefilter("ignore", FutureWarning)
        transformers_logging.disable_progress_bar()
        torch.manual_seed(seed)
        tokenizer = _tokenizer()
        for name in ("tokenizer", "processor"):
            tokenizer.save_pretrained(folder / name)
        _write_json(folder / "processor" / "processor_config.json", _processor_config())
        _text_encoder(tokenizer, preset).save_pretrained(folder / "text_encoder")
        for name in ("transformer", "transformer_ref"):
            _transformer(preset).save_pretrained(folder / name)
        _vae(preset).save_pretrained(folder / "vae")
        _audio_vae().save_pretrained(folder / "audio_vae")
    _write_schedulers(folder)
    _write_json(folder / "modular_model_index.json", _index(preset))


def _write_json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _tokenizer() -> Any:
    """Return a byte-level tokenizer without merges: a token a byte, then Qwen's special tokens."""
    from tokenizers import pre_tokenizers
    from transformers import Qwen2Tokenizer

    vocabulary = {char: index for index, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    vocabulary.update({token: len(vocabulary) + index for index, token in enumerate(_SPECIAL_TOKENS)})
    return Qwen2Tokenizer(vocab=vocabulary, merges=[], extra_special_tokens=list(_SPECIAL_TOKENS[1:]))


def _processor_config() -> dict[str, Any]:
    """Return what transformers' Qwen3VLProcessor saves; written by hand, since building one needs torchvision."""
    shared = {"patch_size": 16, "temporal_patch_size": 2, "merge_size": 2}
    return {
        "processor_class": "Qwen3VLProcessor",
        "image_processor": {
            "image_processor_type": "Qwen2VLImageProcessor",
            "size": {"shortest_edge": 32 * 32, "longest_edge": 64 * 64},
            **shared,
        },
        "video_processor": {
            "video_processor_type": "Qwen3VLVideoProcessor",
            "size": {"shortest_edge": 32 * 32, "longest_edge": 8 * 64 * 64},
            "cap_pixels_per_frame": False,
            **shared,
        },
    }


def _text_encoder(tokenizer: Any, preset: Preset) -> Any:
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    config = Qwen3VLConfig(
        text_config={
            "vocab_size": len(tokenizer),
            "hidden_size": preset.text_dim,
            "intermediate_size": 2 * preset.text_dim,
            "num_hidden_layers": TEXT_LAYERS + 1,
            "num_attention_heads": 16,
            # As released: eight, so that it divides among as many ranks.
            "num_key_value_heads": 8,
            "head_dim": 8,
            "max_position_embeddings": 32768,
            "rope_parameters": {
                "rope_type": "default",
                "rope_theta": 5e6,
                "mrope_section": [2, 1, 1],
                "mrope_interleaved": True,
            },
            "pad_token_id": tokenizer.pad_token_id,
            "bos_token_id": None,
            "eos_token_id": tokenizer.eos_token_id,
        },
        vision_config=_vision_config(preset),
        image_token_id=tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        video_token_id=tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        vision_start_token_id=tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        vision_end_token_id=tokenizer.convert_tokens_to_ids("<|vision_end|>"),
        # As released: the head is a tensor of its own, which H3 never reads.
        tie_word_embeddings=False,
    )
    return sensitise_text_encoder(Qwen3VLForConditionalGeneration(config))


def _vision_config(preset: Preset) -> dict[str, Any]:
    return {
        "depth": 3,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_heads": 2,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": preset.text_dim,
        "num_position_embeddings": 16,
        "deepstack_visual_indexes": [0, 1, 2],
    }


def _transformer(preset: Preset) -> Any:
    from diffusers import MiniMaxH3Transformer3DModel

    return sensitise_transformer(
        MiniMaxH3Transformer3DModel(
            num_attention_heads=preset.heads,
            attention_head_dim=preset.head_dim,
            hidden_size=preset.hidden,
            num_layers=preset.layers,
            num_refiner_layers=preset.refiner,
            ffn_dim=preset.ffn,
            in_channels=LATENT_CHANNELS,
            audio_in_channels=AUDIO_LATENT_CHANNELS,
            patch_size=(1, 2, 2),
            text_dim=preset.text_dim,
            freq_dim=32,
            time_embed_hidden_dim=preset.time,
            time_embed_dim=preset.time,
            rope_freq_dim=preset.rope,
        )
    )


def _vae(preset: Preset) -> Any:
    from diffusers import AutoencoderKLMiniMaxH3

    width = preset.vae_width
    return sensitise_vae(
        AutoencoderKLMiniMaxH3(
            latent_channels=LATENT_CHANNELS,
            block_out_channels=(width, width, width, 2 * width),
            layers_per_block=1,
            spatial_downsample_factors=(2, 2, 2, 2),
            temporal_downsample_factors=(1, 2, 2, 1),
            norm_num_groups=4,
            decoder_num_layers=2,
            decoder_num_attention_heads=2,
            decoder_attention_head_dim=16,
            decoder_num_register_tokens=4,
            decoder_ffn_mult=2,
            # Neither zero nor one, so that a normalisation left out is seen.
            latents_mean=tuple(0.1 * (channel % 3 - 1) for channel in range(LATENT_CHANNELS)),
            latents_std=tuple(1.0 + 0.1 * (channel % 2) for channel in range(LATENT_CHANNELS)),
        )
    )


def _audio_vae() -> Any:
    from diffusers import AutoencoderKLMiniMaxH3Audio

    return sensitise_audio_vae(
        AutoencoderKLMiniMaxH3Audio(
            encoder_dim=2,
            encoder_rates=(2, 4, 4, 5, 5),
            latent_dim=AUDIO_LATENT_CHANNELS,
            latent_channels=AUDIO_LATENT_CHANNELS,
            num_attention_heads=2,
            decoder_dim=64,
            decoder_rates=(5, 5, 4, 4, 2),
            decoder_kernel_sizes=(9, 9, 8, 8, 4),
            resblock_kernel_sizes=(3,),
            resblock_dilation_sizes=((1, 3),),
            sampling_rate=32_000,
            latents_mean=[0.1 * (channel % 3 - 1) for channel in range(AUDIO_LATENT_CHANNELS)],
            latents_std=[1.0 + 0.1 * (channel % 2) for channel in range(AUDIO_LATENT_CHANNELS)],
        )
    )


def _write_schedulers(folder: Path) -> None:
    from diffusers import MiniMaxH3Scheduler

    MiniMaxH3Scheduler(shift=12.0).save_pretrained(folder / "scheduler")
    MiniMaxH3Scheduler(shift=3.0).save_pretrained(folder / "audio_scheduler")


_INDEXED = {
    "audio_scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "audio_vae": ("diffusers", "AutoencoderKLMiniMaxH3Audio"),
    "processor": ("transformers", "Qwen3VLProcessor"),
    "scheduler": ("diffusers", "MiniMaxH3Scheduler"),
    "text_encoder": ("transformers", "Qwen3VLForConditionalGeneration"),
    "tokenizer": ("transformers", "Qwen2TokenizerFast"),
    "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "transformer_ref": ("diffusers", "MiniMaxH3Transformer3DModel"),
    "vae": ("diffusers", "AutoencoderKLMiniMaxH3"),
}


def _index(preset: Preset) -> dict[str, Any]:
    """Return ``modular_model_index.json``; as in the released one each component names the released repository."""
    entries = {
        name: [
            library,
            cls,
            {
                "pretrained_model_name_or_path": "MiniMaxAI/MiniMax-H3",
                "revision": None,
                "subfolder": name,
                "type_hint": [library, cls],
                "variant": None,
            },
        ]
        for name, (library, cls) in _INDEXED.items()
    }
    return {
        "_blocks_class_name": "MiniMaxH3Blocks",
        "_class_name": "MiniMaxH3ModularPipeline",
        **entries,
        "canvas_short_edge": preset.short_edge,
        "canvas_max_pixels": preset.max_pixels,
        "reference_image_short_edge": preset.short_edge,
    }
