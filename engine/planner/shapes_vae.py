"""The tensors of both VAEs, see `planner.shapes`."""

from __future__ import annotations

import math

from .shapes_layers import Named, Shape, conv, inside, linear, norm
from .sizes import AudioVaeSizes, Config, VaeSizes

_FILTER = (1, 1, 12)
"""The taps of the audio VAE's resampling filters."""
_MLP = 2
"""Inner channels of its feed-forward for each outer one."""


def vae_tensors(config: Config) -> Named:
    """The tensors of ``AutoencoderKLMiniMaxH3``."""
    sizes = VaeSizes.of(config)
    yield from inside("encoder", _vae_encoder(sizes))
    yield from conv("quant_conv", 2 * sizes.latents, 2 * sizes.latents, (1, 1, 1))
    yield from conv("post_quant_conv", sizes.latents, sizes.latents, (1, 1, 1))
    yield from inside("decoder", _vae_decoder(sizes))


def _vae_encoder(sizes: VaeSizes) -> Named:
    cube, before = (3, 3, 3), sizes.channels[0]
    yield from conv("conv_in", sizes.inputs, before, cube)
    for level, channels in enumerate(sizes.channels):
        block = f"down_blocks.{level}"
        for layer in range(sizes.layers):
            name, inputs = f"{block}.resnets.{layer}", before if layer == 0 else channels
            yield from norm(f"{name}.norm1", inputs, bias=True)
            yield from conv(f"{name}.conv1", inputs, channels, cube)
            yield from norm(f"{name}.norm2", channels, bias=True)
            yield from conv(f"{name}.conv2", channels, channels, cube)
            if inputs != channels:
                yield from conv(f"{name}.conv_shortcut", inputs, channels, (1, 1, 1))
        if sizes.spatial[level] * sizes.temporal[level] > 1:
            yield from conv(f"{block}.downsamplers.0.conv", channels, channels, cube)
        before = channels
    yield from norm("norm_out", before, bias=True)
    yield from conv("conv_out", before, 2 * sizes.latents, cube)


def _vae_decoder(sizes: VaeSizes) -> Named:
    width = sizes.width
    yield "rope.inv_freq", (math.ceil(sizes.rotary / 6),)
    yield from linear("proj_in", sizes.latents, width)
    yield "register_tokens", (1, sizes.registers, width)
    for layer in range(sizes.depth):
        block = f"transformer_blocks.{layer}"
        yield from norm(f"{block}.norm1", width)
        for name in ("to_q", "to_k", "to_v", "to_out.0"):
            yield from linear(f"{block}.attn.{name}", width, width)
        yield f"{block}.scale1", (width,)
        yield from norm(f"{block}.norm2", width)
        yield from linear(f"{block}.ff.net.0.proj", width, 2 * sizes.ffn)
        yield from linear(f"{block}.ff.net.2", sizes.ffn, width)
        yield f"{block}.scale2", (width,)
    yield from norm("norm_out", width, bias=True)
    yield from linear("proj_out", width, sizes.patch)


def audio_vae_tensors(config: Config) -> Named:
    """The tensors of ``AutoencoderKLMiniMaxH3Audio``."""
    sizes = AudioVaeSizes.of(config)
    yield from inside("encoder.block", _sound_encoder(sizes))
    yield from inside("pre_block", _pre_block(sizes))
    for head in ("mean_proj", "logs_proj"):
        yield from conv(head, sizes.latents, sizes.latents, (1,))
    yield from conv("dec_in_proj", sizes.latents, sizes.trunk, (1,))
    yield from inside("decoder", _sound_decoder(sizes))


def _normed(name: str, shape: Shape, *, bias: int = 0) -> Named:
    """A convolution under torch's weight_norm: lengths along dim 0, and directions."""
    if bias:
        yield f"{name}.bias", (bias,)
    yield f"{name}.weight_g", (shape[0], 1, 1)
    yield f"{name}.weight_v", shape


def _sound_encoder(sizes: AudioVaeSizes) -> Named:
    width = sizes.encoder
    yield from _normed("0", (width, 1, 7), bias=width)
    for place, stride in enumerate(sizes.strides, 1):
        for unit in range(3):
            block = f"{place}.block.{unit}.block"
            yield f"{block}.0.alpha", (1, width, 1)
            yield from _normed(f"{block}.1", (width, width, 7), bias=width)
            yield f"{block}.2.alpha", (1, width, 1)
            yield from _normed(f"{block}.3", (width, width, 1), bias=width)
        yield f"{place}.block.3.alpha", (1, width, 1)
        yield from _normed(f"{place}.block.4", (2 * width, width, 2 * stride), bias=2 * width)
        width *= 2
    last = len(sizes.strides) + 1
    yield f"{last}.alpha", (1, width, 1)
    yield from _normed(f"{last + 1}", (sizes.trunk, width, 3), bias=sizes.trunk)


def _pre_block(sizes: AudioVaeSizes) -> Named:
    trunk, latents = sizes.trunk, sizes.latents
    yield from norm("norm1", trunk, bias=True)
    for name in ("q_bias", "v_bias", "zero_k_bias"):
        yield f"attn.{name}", (trunk,)
    yield from linear("attn.qkv", trunk, 3 * trunk, bias=False)
    yield from linear("attn.proj", latents, latents)
    yield from linear("proj", trunk, latents)
    yield from norm("norm3", trunk, bias=True)
    yield from norm("norm2", latents, bias=True)
    yield from norm("mlp.norm", latents, bias=True)
    for name in ("w0", "w1"):
        yield from linear(f"mlp.{name}", latents, _MLP * latents)
    yield from linear("mlp.w2", _MLP * latents, latents)


def _sound_decoder(sizes: AudioVaeSizes) -> Named:
    width = sizes.decoder
    yield from _normed("conv_pre", (width, sizes.trunk, 7), bias=width)
    for place, kernel in enumerate(sizes.kernels):
        # A transposed convolution's weight has its inputs first.
        yield from _normed(f"ups.{place}.0", (width, width // 2, kernel), bias=width // 2)
        width //= 2
        for number, (size, dilations) in enumerate(sizes.blocks, place * len(sizes.blocks)):
            yield from inside(f"resblocks.{number}", _residual_block(width, size, len(dilations)))
    yield from _activation("activation_post", width)
    yield from _normed("conv_post", (1, width, 7))


def _residual_block(width: int, kernel: int, dilations: int) -> Named:
    for row in ("convs1", "convs2"):
        for place in range(dilations):
            yield from _normed(f"{row}.{place}", (width, width, kernel), bias=width)
    for place in range(2 * dilations):
        yield from _activation(f"activations.{place}", width)


def _activation(name: str, width: int) -> Named:
    for parameter in ("alpha", "beta"):
        yield f"{name}.act.{parameter}", (width,)
    yield f"{name}.upsample.filter", _FILTER
    yield f"{name}.downsample.lowpass.filter", _FILTER
