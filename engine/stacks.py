"""What each component with weights is made of, as far as placing it needs to know: block stacks and exact modules.

A *stack* is a list of blocks that run one after the other, each of which can be on the device only while it runs.
What lies outside the stacks (norms, embeddings, projections) is on the device as long as its component is in use.
Torch-free: the ranks place by this table and the planner counts by it.
"""

from __future__ import annotations

from collections.abc import Mapping

from .rank_options import PARTITIONS

FAMILIES: Mapping[str, tuple[str, ...]] = {
    "dit": PARTITIONS,
    "text_encoder": ("text_encoder",),
    "vae": ("vae", "audio_vae"),
}
"""What ``--offload`` names, and the components of each. The VAEs are placed by their own owner (``vae.staging``)."""

STACKS: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(PARTITIONS, ("token_refiner.refiner_blocks", "transformer_blocks")),
    "text_encoder": ("visual.blocks", "language_model.layers"),
}
"""The block stacks of each component, in the order in which they run; the names are the model's."""

MODULATION: Mapping[str, str] = dict.fromkeys(PARTITIONS, "adaln_proj")
"""The child of a block that depends on times alone (AdaLN), by component: 26 of the released transformer's 66 GB."""

FULL_PRECISION: Mapping[str, frozenset[str]] = {
    name: frozenset({"proj_in", "audio_proj_in", "time_embedder", "proj_out", "audio_proj_out", "rope"})
    for name in PARTITIONS
} | {
    "vae": frozenset({"encoder", "quant_conv", "norm1", "norm2", "norm_out", "scale1", "scale2"}),
    "audio_vae": frozenset({"encoder", "decoder", "pre_block", "dec_in_proj", "mean_proj", "logs_proj"}),
    "text_encoder": frozenset(),
}
"""Modules that stay fp32 whatever the compute type is, by component; any part of a tensor's dotted name counts."""


REDUCED_STACKS: Mapping[str, tuple[str, ...]] = {
    **{name: STACKS[name] for name in PARTITIONS},
    "text_encoder": ("language_model.layers",),
}
"""The stacks whose layers ``--block-storage`` concerns. The vision blocks, 2% of the text encoder, keep their type."""


def family_of(component: str) -> str:
    """Return the family that ``component`` (with weights) belongs to."""
    return next(family for family, members in FAMILIES.items() if component in members)
