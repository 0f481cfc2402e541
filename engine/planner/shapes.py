"""The tensors of every component as closed forms of its ``config.json`` alone: what a model is before it is built.

Promise: names and shapes are those of the classes that diffusers and transformers build from the same configuration
(the text encoder cut as `models.text_encoder` cuts it), buffers included. Torch-free; raises what reading the
configuration raises (`planner.sizes`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ..placement_modulation import FACTORS, MODALITIES
from .shapes_layers import Named, Shape, inside, linear, norm
from .shapes_vae import audio_vae_tensors, vae_tensors
from .sizes import Config, TextSizes, TransformerSizes, VisionSizes


def is_computed(name: str) -> bool:
    """Whether the tensor ``name`` is computed when its model is built (fp32, whatever the rest is), not read."""
    return name.endswith("inv_freq")


def component_shapes(name: str, config: Config, *, left_out: Iterable[str] = ()) -> dict[str, Shape]:
    """Return the shape of each parameter and buffer of the component ``name``, by its name in the model.

    Args:
        left_out: children that are not loaded.
    """
    absent = frozenset(left_out)
    return {tensor: shape for tensor, shape in _SHAPES[name](config) if tensor.partition(".")[0] not in absent}


def _transformer(config: Config) -> Named:
    sizes = TransformerSizes.of(config)
    yield from linear("proj_in", sizes.video_width, sizes.hidden)
    yield from linear("audio_proj_in", sizes.audio_width, sizes.hidden)
    yield from linear("context_embedder", sizes.text_dim, sizes.hidden)
    yield from linear("time_embedder.linear_1", sizes.freq_dim, sizes.time_hidden)
    yield from linear("time_embedder.linear_2", sizes.time_hidden, sizes.time_dim)
    yield "rope.inv_freq", (sizes.rope_freqs,)
    for layer in range(sizes.refiner_layers):
        yield from inside(f"token_refiner.refiner_blocks.{layer}", _transformer_block(sizes))
    yield from norm("token_refiner.final_norm", sizes.hidden)
    for layer in range(sizes.layers):
        yield from inside(f"transformer_blocks.{layer}", _transformer_block(sizes))
        modulation = FACTORS * sizes.hidden * MODALITIES
        yield from linear(f"transformer_blocks.{layer}.adaln_proj.linear", sizes.time_dim, modulation)
    yield from norm("norm_out.norm", sizes.hidden)
    yield from linear("norm_out.linear", sizes.time_dim, 2 * sizes.hidden)
    yield from linear("proj_out", sizes.hidden, sizes.video_width)
    yield from linear("audio_proj_out", sizes.hidden, sizes.audio_width)


def _transformer_block(sizes: TransformerSizes) -> Named:
    yield from norm("norm1", sizes.hidden)
    for layer in ("attn.to_q", "attn.to_k", "attn.to_v"):
        yield from linear(layer, sizes.hidden, sizes.inner, bias=False)
    yield from norm("attn.norm_q", sizes.head_dim)
    yield from norm("attn.norm_k", sizes.head_dim)
    yield from linear("attn.to_out.0", sizes.inner, sizes.hidden, bias=False)
    yield from norm("norm2", sizes.hidden)
    yield from linear("ff.net.0.proj", sizes.hidden, 2 * sizes.ffn, bias=False)
    yield from linear("ff.net.2", sizes.ffn, sizes.hidden, bias=False)


def _text_encoder(config: Config) -> Named:
    yield from inside("visual", _vision_tower(VisionSizes.of(config)))
    sizes = TextSizes.of(config)
    yield "language_model.embed_tokens.weight", (sizes.vocabulary, sizes.hidden)
    for layer in range(sizes.layers):
        yield from inside(f"language_model.layers.{layer}", _text_layer(sizes))
    for buffer in ("inv_freq", "original_inv_freq"):
        yield f"language_model.rotary_emb.{buffer}", (sizes.head_dim // 2,)


def _text_layer(sizes: TextSizes) -> Named:
    queries, keys = sizes.heads * sizes.head_dim, sizes.kv_heads * sizes.head_dim
    for layer, outputs in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
        yield from linear(f"self_attn.{layer}", sizes.hidden, outputs, bias=sizes.bias)
    yield from linear("self_attn.o_proj", queries, sizes.hidden, bias=sizes.bias)
    yield from norm("self_attn.q_norm", sizes.head_dim)
    yield from norm("self_attn.k_norm", sizes.head_dim)
    for layer in ("gate_proj", "up_proj"):
        yield from linear(f"mlp.{layer}", sizes.hidden, sizes.ffn, bias=False)
    yield from linear("mlp.down_proj", sizes.ffn, sizes.hidden, bias=False)
    yield from norm("input_layernorm", sizes.hidden)
    yield from norm("post_attention_layernorm", sizes.hidden)


def _vision_tower(sizes: VisionSizes) -> Named:
    yield "patch_embed.proj.weight", (sizes.hidden, *sizes.patch)
    yield "patch_embed.proj.bias", (sizes.hidden,)
    yield "pos_embed.weight", (sizes.positions, sizes.hidden)
    # Half of a head's channels for each of two axes, two channels a frequency.
    for buffer in ("inv_freq", "original_inv_freq"):
        yield f"rotary_pos_emb.{buffer}", (-(-(sizes.hidden // sizes.heads // 2) // 2),)
    for block in range(sizes.depth):
        yield from inside(f"blocks.{block}", _vision_block(sizes))
    yield from inside("merger", _merger(sizes, normed=sizes.hidden))
    for place in range(len(sizes.deepstack)):
        yield from inside(f"deepstack_merger_list.{place}", _merger(sizes, normed=sizes.hidden * sizes.merged))


def _vision_block(sizes: VisionSizes) -> Named:
    for name in ("norm1", "norm2"):
        yield from norm(name, sizes.hidden, bias=True)
    yield from linear("attn.qkv", sizes.hidden, 3 * sizes.hidden)
    yield from linear("attn.proj", sizes.hidden, sizes.hidden)
    yield from linear("mlp.linear_fc1", sizes.hidden, sizes.ffn)
    yield from linear("mlp.linear_fc2", sizes.ffn, sizes.hidden)


def _merger(sizes: VisionSizes, *, normed: int) -> Named:
    width = sizes.hidden * sizes.merged
    yield from norm("norm", normed, bias=True)
    yield from linear("linear_fc1", width, width)
    yield from linear("linear_fc2", width, sizes.out)


_SHAPES: Mapping[str, Callable[[Config], Named]] = {
    "text_encoder": _text_encoder,
    "transformer": _transformer,
    "transformer_ref": _transformer,
    "vae": vae_tensors,
    "audio_vae": audio_vae_tensors,
}
