"""Random weights that listen: what makes a tiny checkpoint sensitive to its conditions.

Freshly initialised layers are almost identities: gates near zero, attention near uniform, so that a lost condition
moves the result by 1e-4 and a test of parity proves little. Each function here rescales one model in place, from
torch's global generator, so that every path matters, and returns it in evaluation mode.
"""

from __future__ import annotations

from typing import Any

import torch

_SOUND_LEVEL = 0.1
"""Standard deviation of the decoded soundtrack: heard, and six of them below clipping."""


def _fill(parameter: torch.Tensor, std: float, mean: float = 0.0) -> None:
    parameter.normal_(mean, std)


def _fan_in(layer: Any, gain: float = 1.0) -> None:
    """Give a linear layer an output of ``gain`` times its input's size."""
    _fill(layer.weight, gain / layer.in_features**0.5)


@torch.no_grad()
def sensitise_transformer(model: Any) -> Any:
    """Sharpen attention, open the gates, and let text and time reach every row."""
    for block in [*model.transformer_blocks, *model.token_refiner.refiner_blocks]:
        _fill(block.attn.norm_q.weight, 0.3, 1.6)
        _fill(block.attn.norm_k.weight, 0.3, 1.6)
        _fan_in(block.attn.to_v)
        _fan_in(block.attn.to_out[0], 2.0)
        _fill(block.norm1.weight, 0.2, 1.0)
        _fill(block.norm2.weight, 0.2, 1.0)
    for block in model.transformer_blocks:
        _fan_in(block.adaln_proj.linear)
        _fill(block.adaln_proj.linear.bias, 0.6)
    _fill(model.norm_out.linear.bias, 0.5)
    _fan_in(model.context_embedder)
    return model.eval()


@torch.no_grad()
def sensitise_text_encoder(model: Any) -> Any:
    """Let each of the 51 layers, and the vision tower, move what passes."""
    for layer in model.model.language_model.layers:
        for linear in (
            layer.self_attn.v_proj,
            layer.self_attn.o_proj,
            layer.mlp.gate_proj,
            layer.mlp.up_proj,
            layer.mlp.down_proj,
        ):
            _fan_in(linear, 0.7)
    _fill(model.model.language_model.embed_tokens.weight, 0.6)
    for parameter in model.model.visual.parameters():
        if parameter.dim() > 1:
            parameter.mul_(4)
    return model.eval()


@torch.no_grad()
def sensitise_vae(model: Any) -> Any:
    """Switch on the decoder's blocks, whose residual scales start at zero, and spread colours and latents.

    The encoder's mean then moves with the picture as far as a latent is wide, and its noise does not drown it.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("scale1", "scale2", "register_tokens")):
            _fill(parameter, 0.5)
    _fan_in(model.decoder.proj_in)
    _fan_in(model.decoder.proj_out)
    channels = model.config.latent_channels
    model.quant_conv.weight[:channels].mul_(8)
    model.quant_conv.bias[:channels].zero_()
    model.quant_conv.bias[channels:].sub_(6)
    return model.eval()


@torch.no_grad()
def sensitise_audio_vae(model: Any) -> Any:
    """Take the constant out of the sound and set its level; let what is encoded move the latent."""
    model.mean_proj.weight.mul_(4)
    model.mean_proj.bias.zero_()
    last = model.decoder.conv_post
    last.weight_v.sub_(last.weight_v.mean(dim=-1, keepdim=True))
    latents = torch.randn(2, model.config.latent_channels, 40)  # a second of both channels
    level = float(model.decode(latents, return_dict=False)[0].std())
    # A power of two, so that the last bits of the measured level do not reach the file.
    last.weight_g.mul_(2.0 ** round(float(torch.log2(torch.tensor(_SOUND_LEVEL / level)))))
    return model.eval()
