"""Decoding and encoding pictures with diffusers' video VAE, in units of one tile of one chunk, on all ranks.

Promise: in fp32 the results are bit-equal to ``AutoencoderKLMiniMaxH3.decode`` and ``encode`` with the same tiles, on
any number of ranks, for every length that those take; shorter videos decode too. Only
what is needed of a tile travels, in the type in which it was computed. Every rank calls with the same arguments; the
answering rank gets the result. Raises what `crew.collect` and the staging raise.

On an accelerator same-shaped tiles are decoded together as far as memory allows. On a CPU one by one: together they
gain nothing there (0.20 s against 0.21 s for four trained tiles of the small checkpoint). The encoder always takes one
by one: its convolutions add in another order for several (1e-6 in fp32).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from ..contract import geometry
from ..devices_memory import free_caches
from ..parallel.collectives import collect_json
from .chunks import OVERLAP, count_chunks
from .crew import VaeCrew, Work, collect
from .tiles import Grid, fade_in

_HEAD = geometry.FRAMES_PER_CHUNK
_TAIL = geometry.MIN_FRAMES
"""A decoded chunk has the 17 frames that it is about, and 5 of the next one, over which they are cross-faded."""
_LARGEST_BATCH = 4
"""Tiles at once: a released tile, 1,800 tokens wide 2,048, already fills a device."""


def decode_frames(
    crew: VaeCrew,
    latents: torch.Tensor,
    *,
    boundary: Callable[[], None],
    ratio: int,
    batch: int | None = None,
    convert: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone,
) -> Iterator[torch.Tensor]:
    """Decode ``latents`` [1, C, T, h, w] (denormalised), T >= 1, chunk by chunk.

    Args:
        boundary: see `StageContext.boundary`; called before each round of units.
        ratio: pixels along the side of a latent.
        batch: tiles to decode at once; by default what suits the device. The same on all ranks.
        convert: a piece [1, 3, f, H, W] in the VAE's pixel space -> what is yielded, in memory of its own; called once
            more for a piece when memory ran out.

    Yields:
        on the answering rank what was made of `count_chunks` (T) pieces, which together have the frames of T latents.
    """
    grid = Grid.cover(latents.shape[3] * ratio, latents.shape[4] * ratio, crew.tiles, ratio=ratio)
    try:
        with crew.bring_vae(stage="decode_video") as vae:
            if batch is None:
                batch = _fitting_batch(vae, grid, crew, ratio=ratio, boundary=boundary)
            prepare = partial(_decoding, vae, latents, grid, ratio=ratio, batch=batch)
            work = crew.room.make(prepare, what="the latents", stage="decode_video")
            yield from collect(work, crew, boundary=boundary, finish=_Joiner(grid, latents.shape[2], convert))
    finally:
        crew.finish()


def encode_pixels(
    crew: VaeCrew,
    pixels: torch.Tensor,
    *,
    boundary: Callable[[], None],
    ratio: int,
    prepare: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.float,
) -> torch.Tensor | None:
    """Encode ``pixels`` [1, 3, F, H, W] on any device; sides are multiples of ``ratio``.

    A single frame takes the spatial path alone; more are encoded in clips of 17, the last one filled with its last
    frame.

    Args:
        prepare: brings a tile of some frames, on the VAE's device, into its pixel space, fp32. A film of bytes is so
            never held as floats.

    Returns:
        on the answering rank the moments [1, 2C, T, H/ratio, W/ratio] on its device, T = 1 for one frame, else 5n+2
        for 17n+5; None on the others.
    """
    frames, height, width = pixels.shape[2:]
    grid = Grid.cover(height, width, crew.tiles, ratio=ratio)
    clips = -(-frames // geometry.FRAMES_PER_CHUNK)
    crew = crew.encoders
    try:
        with crew.bring_vae(stage="encode_media") as vae:
            work = _encoding(vae, pixels, grid, clips=clips, ratio=ratio, prepare=prepare)
            stitch = partial(grid.stitch, scale=ratio)
            stitched = list(collect(work, crew, boundary=boundary, finish=stitch))  # of [2C, t, h, w]
            if not crew.answers:
                return None
            join = partial(torch.cat, stitched, dim=1)
            moments = crew.room.make(join, what="the moments of all clips", stage="encode_media")[None]
            drop = 0 if frames == 1 else vae.config.token_drop
            return moments[:, :, : moments.shape[2] - drop]
    finally:
        crew.finish()


def _decoding(vae: Any, latents: torch.Tensor, grid: Grid, *, ratio: int, batch: int) -> Work:
    """Return the work of decoding; a unit's result is [3, 22, h, w], the frames of a clip that are used."""
    step = geometry.LATENTS_PER_CHUNK
    chunks = count_chunks(latents.shape[2])
    missing = chunks * step + OVERLAP - latents.shape[2]
    # A clip needs its two latent frames of look-ahead; without them the VAE has nothing to decode.
    padded = torch.cat([latents, latents[:, :, -1:].expand(-1, -1, missing, -1, -1)], dim=2)
    dtype = torch.float32 if vae is None else vae.decoder.proj_out.weight.dtype
    if vae is not None:
        padded = padded.to(vae.post_quant_conv.weight.dtype)

    @torch.no_grad()
    def compute(units: range) -> torch.Tensor:
        tiles = []
        for unit in units:
            chunk, tile = divmod(unit, grid.count)
            rows, columns = grid.window(tile, scale=ratio)
            tiles.append(padded[:, :, chunk * step : (chunk + 1) * step + OVERLAP, rows, columns])
        clips = vae.decoder(vae.post_quant_conv(tiles[0] if len(tiles) == 1 else torch.cat(tiles)))
        # Each part starts with the frames of the encoder's causal padding.
        span, skipped = step * vae.temporal_compression_ratio, vae.frame_pre_padding
        return torch.cat([clips[:, :, skipped:span], clips[:, :, span + skipped :]], dim=2)

    shape = (3, _HEAD + _TAIL, grid.rows.length, grid.columns.length)
    return Work("decode_video", chunks, grid.count, shape, dtype, compute, batch)


def _encoding(
    vae: Any,
    pixels: torch.Tensor,
    grid: Grid,
    *,
    clips: int,
    ratio: int,
    prepare: Callable[[torch.Tensor], torch.Tensor],
) -> Work:
    """Return the work of encoding; a unit's result is the moments of one tile of one clip, [2C, t, h, w]."""
    span = geometry.FRAMES_PER_CHUNK
    single = pixels.shape[2] == 1

    @torch.no_grad()
    def compute(units: range) -> torch.Tensor:
        (unit,) = units
        clip, tile = divmod(unit, grid.count)
        rows, columns = grid.window(tile)
        frames = pixels[:, :, clip * span : (clip + 1) * span, rows, columns]
        lacking = 0 if single else span - frames.shape[2]
        if lacking:
            frames = torch.cat([frames, frames[:, :, -1:].expand(-1, -1, lacking, -1, -1)], dim=2)
        weight = vae.quant_conv.weight
        moments: torch.Tensor = vae.quant_conv(vae.encoder(prepare(frames.to(weight.device)).to(weight.dtype)))
        return moments

    channels = 0 if vae is None else vae.quant_conv.out_channels
    latents = 1 if single else geometry.LATENTS_PER_CHUNK
    shape = (channels, latents, grid.rows.length // ratio, grid.columns.length // ratio)
    dtype = torch.float32 if vae is None else vae.quant_conv.weight.dtype
    return Work("encode_media", clips, grid.count, shape, dtype, compute)


class _Joiner:
    """Makes the pieces of a video, one after the other, of the tiles of its chunks."""

    def __init__(self, grid: Grid, latent_frames: int, convert: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Begin; ``convert``: see `decode_frames`."""
        self._grid = grid
        self._convert = convert
        self._chunks = count_chunks(latent_frames)
        self._frames = geometry.frames_of_latents(latent_frames)
        self._overlap: torch.Tensor | None = None

    def __call__(self, tiles: list[torch.Tensor]) -> torch.Tensor:
        """Return the next piece, cross-faded with the one before; the last includes the overlap, then a cut.

        After an error the same chunk can be given again.
        """
        clip = self._grid.stitch(tiles)  # [3, 22, H, W]
        if self._overlap is not None:
            fade_in(self._overlap, clip, dim=-3)
        last = self._chunks == 1
        made = self._convert(clip[None, :, : self._frames if last else _HEAD])
        # The overlap is copied so that the clip can go.
        self._overlap = None if last else clip[:, _HEAD:].clone()
        self._chunks -= 1
        self._frames -= _HEAD
        return made


def _fitting_batch(vae: Any, grid: Grid, crew: VaeCrew, *, ratio: int, boundary: Callable[[], None]) -> int:
    """Return how many tiles every rank decodes at once: what half of the free memory of the fullest one holds.

    A tile's peak is its widest layer: per token the gated feed-forward (three times its width) and what attention
    holds (a dozen times the model's width), and its pixels three times.
    """
    device = crew.mesh.device
    if device.type == "cpu":
        return 1
    fits = _LARGEST_BATCH
    if vae is not None:
        free_caches()
        decoder = vae.decoder
        pixels = grid.rows.length * grid.columns.length
        tokens = (geometry.LATENTS_PER_CHUNK + OVERLAP) * pixels // ratio**2
        width = decoder.proj_in.out_features
        wide = decoder.transformer_blocks[0].ff.net[-1].in_features
        values = tokens * (3 * wide + 12 * width) + 3 * 3 * 4 * tokens * ratio**2
        free, _ = torch.accelerator.get_memory_info(device)
        fits = int(free // 2 // (values * torch.float32.itemsize))
    # A rank that failed until here must not be waited for in the exchange that follows.
    boundary()
    least: int = min(collect_json(fits, crew.mesh))
    return max(1, min(_LARGEST_BATCH, least))
