"""Which components a rank holds, and which part of their layers: decided here alone, for ranks and planner alike.

Tensor parallelism divides attention's projections by heads and the feed-forward by inner channels: column-wise in,
row-wise out, one all-reduce each. The AdaLN projections (two fifths of the released transformer) are divided too: their
output, one small table of modulation rows per step, is gathered. Norms, embeddings, patch projections, heads and the
vision tower stay whole: together a few percent. The text refiner's blocks are divided as the others are; every rank of
the axis sees the same text. Torch-free; raises nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from .rank_options import PARTITIONS


@dataclass(frozen=True)
class Split:
    """How one linear layer is divided.

    Attributes:
        dim: of the weight; 0 divides what comes out, 1 what goes in (outputs are then summed over ranks).
        blocks: equal projections that lie behind each other along dim 0; each is divided by itself.
        gather: whether every rank needs the whole output.
    """

    dim: int
    blocks: int = 1
    gather: bool = False


_OUT, _IN = Split(0), Split(1)


@dataclass(frozen=True)
class TensorPlan:
    """The plan of one model.

    Attributes:
        stacks: names of the lists of blocks that are divided.
        layers: the layers of a block, by their name in it. A block may lack some.
        attention: the name of a block's attention, whose ``heads`` are then a rank's own; None where the
            library derives them from the shapes.
        option: the option that sets the number of ranks.
    """

    stacks: tuple[str, ...]
    layers: Mapping[str, Split]
    attention: str | None = None
    option: str = "tp_degree"


TRANSFORMER = TensorPlan(
    stacks=("token_refiner.refiner_blocks", "transformer_blocks"),
    layers={
        "attn.to_q": _OUT,
        "attn.to_k": _OUT,
        "attn.to_v": _OUT,
        "attn.to_out.0": _IN,
        # SwiGLU: values and gates in one layer, paired by index.
        "ff.net.0.proj": Split(0, blocks=2),
        "ff.net.2": _IN,
        "adaln_proj.linear": Split(0, gather=True),
    },
    attention="attn",
)
TEXT_ENCODER = TensorPlan(
    stacks=("language_model.layers",),
    layers={
        "self_attn.q_proj": _OUT,
        "self_attn.k_proj": _OUT,
        "self_attn.v_proj": _OUT,
        "self_attn.o_proj": _IN,
        "mlp.gate_proj": _OUT,
        "mlp.up_proj": _OUT,
        "mlp.down_proj": _IN,
    },
    option="text_encoder_tp_degree",
)


def text_encoder_ranks(degree: int) -> tuple[int, ...]:
    """Return the ranks that hold a part of the text encoder: the first ones."""
    return tuple(range(degree))


def encodes_media(rank: int, *, media_encode: str) -> bool:
    """Whether ``rank`` takes part in encoding media, and so loads the halves of the VAEs that encode."""
    return media_encode != "leader" or rank == 0


def kept_components(
    needed: Iterable[str], *, rank: int, text_encoder_ranks: int = 1, vae_on_one_rank: bool = False
) -> frozenset[str]:
    """Return what a rank loads: the transformers and the video VAE everywhere, the rest on rank 0 alone.

    Args:
        needed: the components that the served stages need.
        text_encoder_ranks: how many ranks, the first ones, hold the text encoder together.
        vae_on_one_rank: whether rank 0 alone holds the video VAE too.
    """
    if rank == 0:
        return frozenset(needed)
    shared = {*PARTITIONS, *(() if vae_on_one_rank else ("vae",))}
    return frozenset(needed) & (shared | {"text_encoder"} if rank < text_encoder_ranks else shared)
