"""The widths of every component, read from its ``config.json``: what the planner's closed forms are made of.

Promise: values that a configuration leaves out are the defaults of diffusers' and transformers' classes; the released
model's are `RELEASED`. Torch-free; raises KeyError or TypeError for a configuration of another class, which opening a
checkpoint refuses.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..checkpoint_facts import TEXT_LAYERS

Config = Mapping[str, Any]
_MOST = 2**24
_MOST_LAYERS = 1000
_LAYERS = ("num_layers", "num_refiner_layers", "decoder_num_layers", "layers_per_block", "num_hidden_layers", "depth")


def check_counts(config: Config) -> None:
    """Check that no number of ``config`` is beyond all reason, so that counting with it ends.

    Raises:
        ValueError: naming the key.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            check_counts(value)
        elif isinstance(value, int) and not -_MOST <= value <= (_MOST_LAYERS if key in _LAYERS else _MOST):
            raise ValueError(f"{key} is {value}")


@dataclass(frozen=True)
class TransformerSizes:
    """The widths of diffusers' ``MiniMaxH3Transformer3DModel``; the defaults are the released ones.

    Attributes:
        video_width: values of a row of pictures. rotary: channels of a head that are rotated.
    """

    heads: int
    head_dim: int
    hidden: int
    layers: int
    refiner_layers: int
    ffn: int
    video_width: int
    audio_width: int
    text_dim: int
    freq_dim: int
    time_hidden: int
    time_dim: int
    rope_freqs: int

    @classmethod
    def of(cls, config: Config) -> TransformerSizes:
        """Read a ``config.json``."""
        return cls(
            heads=config.get("num_attention_heads", 56),
            head_dim=config.get("attention_head_dim", 128),
            hidden=config.get("hidden_size", 5376),
            layers=config.get("num_layers", 50),
            refiner_layers=config.get("num_refiner_layers", 2),
            ffn=config.get("ffn_dim", 14_336),
            video_width=config.get("in_channels", 24) * math.prod(config.get("patch_size", (1, 2, 2))),
            audio_width=config.get("audio_in_channels", 32),
            text_dim=config.get("text_dim", 5120),
            freq_dim=config.get("freq_dim", 256),
            time_hidden=config.get("time_embed_hidden_dim", 5376),
            time_dim=config.get("time_embed_dim", 2688),
            rope_freqs=config.get("rope_freq_dim", 16),
        )

    @property
    def inner(self) -> int:
        """Channels of all heads."""
        return self.heads * self.head_dim

    @property
    def rotary(self) -> int:
        """Channels of a head that are rotated: two for each frequency of three axes."""
        return 6 * self.rope_freqs


@dataclass(frozen=True)
class TextSizes:
    """The widths of the language model in transformers' ``Qwen3VLModel``, cut after `TEXT_LAYERS` layers."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocabulary: int
    bias: bool
    layers: int = TEXT_LAYERS

    @classmethod
    def of(cls, config: Config) -> TextSizes:
        """Read a ``config.json``."""
        text = config["text_config"]
        heads = text.get("num_attention_heads", 32)
        return cls(
            hidden=text["hidden_size"],
            heads=heads,
            kv_heads=text.get("num_key_value_heads") or heads,
            head_dim=text.get("head_dim", 128),
            ffn=text["intermediate_size"],
            vocabulary=text.get("vocab_size", 151_936),
            bias=text.get("attention_bias", False),
        )


@dataclass(frozen=True)
class VisionSizes:
    """The widths of its vision tower.

    Attributes:
        merged: patches that become one text row. deepstack: blocks whose states reach the language model.
    """

    hidden: int
    heads: int
    ffn: int
    depth: int
    out: int
    positions: int
    patch: tuple[int, ...]
    merged: int
    deepstack: tuple[int, ...]

    @classmethod
    def of(cls, config: Config) -> VisionSizes:
        """Read a ``config.json``."""
        vision = config.get("vision_config") or {}
        side = vision.get("patch_size", 16)
        return cls(
            hidden=vision.get("hidden_size", 1152),
            heads=vision.get("num_heads", 16),
            ffn=vision.get("intermediate_size", 4304),
            depth=vision.get("depth", 27),
            out=vision.get("out_hidden_size", 3584),
            positions=vision.get("num_position_embeddings", 2304),
            patch=(vision.get("in_channels", 3), vision.get("temporal_patch_size", 2), side, side),
            merged=vision.get("spatial_merge_size", 2) ** 2,
            deepstack=tuple(vision.get("deepstack_visual_indexes", (8, 16, 24))),
        )


@dataclass(frozen=True)
class VaeSizes:
    """The widths of diffusers' ``AutoencoderKLMiniMaxH3``.

    Attributes:
        channels: of each level of the encoder. spatial, temporal: how much each level shrinks.
        layers: residual blocks a level. heads … registers: of the decoder; ffn: its feed-forward's inner channels.
        patch: values of a pixel block that one latent cell becomes.
    """

    inputs: int
    outputs: int
    latents: int
    channels: tuple[int, ...]
    layers: int
    spatial: tuple[int, ...]
    temporal: tuple[int, ...]
    groups: int
    depth: int
    heads: int
    head_dim: int
    registers: int
    ffn: int
    rotary: int
    drop: int

    @classmethod
    def of(cls, config: Config) -> VaeSizes:
        """Read a ``config.json``."""
        heads, head_dim = config.get("decoder_num_attention_heads", 32), config.get("decoder_attention_head_dim", 64)
        return cls(
            inputs=config.get("in_channels", 3),
            outputs=config.get("out_channels", 3),
            latents=config.get("latent_channels", 24),
            channels=tuple(config.get("block_out_channels", (128, 256, 256, 512, 512, 1024))),
            layers=config.get("layers_per_block", 2),
            spatial=tuple(config.get("spatial_downsample_factors", (2, 2, 2, 2, 1, 1))),
            temporal=tuple(config.get("temporal_downsample_factors", (1, 2, 2, 1, 1, 1))),
            groups=config.get("norm_num_groups", 32),
            depth=config.get("decoder_num_layers", 36),
            heads=heads,
            head_dim=head_dim,
            registers=config.get("decoder_num_register_tokens", 4),
            ffn=heads * head_dim * config.get("decoder_ffn_mult", 4),
            rotary=int(head_dim * config.get("decoder_rope_dim_ratio", 0.75)),
            drop=config.get("token_drop", 3),
        )

    @property
    def width(self) -> int:
        """Channels of the decoder."""
        return self.heads * self.head_dim

    @property
    def ratio(self) -> int:
        """Pixels along the side of a latent cell."""
        return math.prod(self.spatial)

    @property
    def time_ratio(self) -> int:
        """Pixel frames of a latent frame in a decoded clip."""
        return math.prod(self.temporal)

    @property
    def patch(self) -> int:
        """Values that one latent cell becomes."""
        return self.outputs * self.time_ratio * self.ratio**2


@dataclass(frozen=True)
class AudioVaeSizes:
    """The widths of diffusers' ``AutoencoderKLMiniMaxH3Audio``.

    Attributes:
        encoder: channels of its first convolution, doubled by each of ``strides``. trunk: channels between encoder,
            or decoder, and the projections to ``latents`` channels.
        decoder: channels of its first convolution, halved by each of ``rates`` (kernels: ``kernels``).
        blocks: (kernel, dilations) of the residual blocks that run side by side at each rate.
    """

    encoder: int
    strides: tuple[int, ...]
    trunk: int
    latents: int
    heads: int
    decoder: int
    rates: tuple[int, ...]
    kernels: tuple[int, ...]
    blocks: tuple[tuple[int, tuple[int, ...]], ...]

    @classmethod
    def of(cls, config: Config) -> AudioVaeSizes:
        """Read a ``config.json``."""
        kernels = config.get("resblock_kernel_sizes", (3, 7, 11))
        dilations = config.get("resblock_dilation_sizes", ((1, 3, 5),) * 3)
        return cls(
            encoder=config.get("encoder_dim", 64),
            strides=tuple(config.get("encoder_rates", (2, 4, 4, 5, 5))),
            trunk=config.get("latent_dim", 2048),
            latents=config.get("latent_channels", 32),
            heads=config.get("num_attention_heads", 8),
            decoder=config.get("decoder_dim", 1024),
            rates=tuple(config.get("decoder_rates", (5, 5, 2, 2, 2, 2, 2))),
            kernels=tuple(config.get("decoder_kernel_sizes", (9, 9, 4, 4, 4, 4, 4))),
            blocks=tuple((kernel, tuple(each)) for kernel, each in zip(kernels, dilations, strict=True)),
        )


RELEASED: Mapping[str, Config] = {
    "text_encoder": {
        "text_config": {
            "hidden_size": 5120,
            "intermediate_size": 25_600,
            "num_attention_heads": 64,
            "num_hidden_layers": 64,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151_936,
        },
        "vision_config": {
            "depth": 27,
            "hidden_size": 1152,
            "intermediate_size": 4304,
            "num_heads": 16,
            "out_hidden_size": 5120,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [8, 16, 24],
        },
    },
    "transformer": {},
    "transformer_ref": {},
    "vae": {},
    "audio_vae": {},
}
"""The released model's: Qwen3-VL-32B, for the rest the classes' defaults."""
