"""Sound in slices and in pieces: layers in slices give diffusers' bits, pieces give the whole to the rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from engine.contract.geometry import SAMPLES_PER_AUDIO_LATENT, audio_latents
from engine.devices import convolves_with_avx512
from engine.models.bundle import Models
from engine.vae import sound_slices
from engine.vae.crew import VaeCrew
from engine.vae.sound import decode_sound, encode_sound
from engine.vae.sound_pieces import LONGEST_WHOLE, cut, decoder_reach, encoder_reach
from engine.vae.sound_slices import sliced
from tests.support import stages
from tests.support.memory import peak_growth

WIDTH = 60


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=frozenset({"audio_vae"}))


@pytest.fixture
def crew(models: Models) -> VaeCrew:
    return stages.crew(models)


def noise(*shape: int, seed: int = 1) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def there(made: torch.Tensor | None) -> torch.Tensor:
    assert made is not None
    return made


@pytest.mark.parametrize("total", [LONGEST_WHOLE, LONGEST_WHOLE + 1, 1000, 2388])
def test_pieces_are_alike_join_without_a_gap_and_bring_all_that_the_used_part_reads(total: int) -> None:
    pieces = cut(total, width=LONGEST_WHOLE, reach=33)
    assert {piece.end - piece.start for piece in pieces} == {LONGEST_WHOLE}
    assert [piece.first for piece in pieces] == [0, *(piece.last for piece in pieces[:-1])]
    assert pieces[-1].last == total
    for piece in pieces:
        assert piece.start == 0 or piece.first - piece.start >= 33
        assert piece.end == total or piece.end - piece.last >= 33
    assert len(cut(LONGEST_WHOLE, width=LONGEST_WHOLE, reach=33)) == 1


def test_what_lies_farther_than_the_reach_changes_no_bit(models: Models) -> None:
    vae, half = models.audio_vae, 40
    heard = decoder_reach(vae)
    read = encoder_reach(vae)
    latents, sound = noise(2, 32, 2 * half), noise(2, 1, 2 * half * SAMPLES_PER_AUDIO_LATENT)
    early, late = slice(None, half), slice(half, None)
    early_samples, late_samples = (
        slice(None, half * SAMPLES_PER_AUDIO_LATENT),
        slice(half * SAMPLES_PER_AUDIO_LATENT, None),
    )
    with torch.no_grad():
        waveform, trunk = vae.decode(latents).sample, vae.encoder(sound)
        for changed, samples, same, hop in (
            (late, late_samples, slice(None, half - heard), slice(None, half - read)),
            (early, early_samples, slice(half + heard, None), slice(half + read, None)),
        ):
            others, other_sound = latents.clone(), sound.clone()
            others[..., changed] += 1
            other_sound[..., samples] += 1
            kept = slice(
                *(None if edge is None else edge * SAMPLES_PER_AUDIO_LATENT for edge in (same.start, same.stop))
            )
            made, other_trunk = vae.decode(others).sample, vae.encoder(other_sound)
            assert torch.equal(made[..., kept], waveform[..., kept])
            assert not torch.equal(made, waveform)
            assert torch.equal(other_trunk[..., hop], trunk[..., hop])
            assert not torch.equal(other_trunk, trunk)


def test_a_sound_in_pieces_is_the_whole_to_the_rounding_and_back(crew: VaeCrew) -> None:
    latents = noise(1, 32, 2, 3 * WIDTH + 7)
    whole, pieces = (there(decode_sound(crew, latents, width=width)) for width in (LONGEST_WHOLE, WIDTH))
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-6)
    sound = whole[..., :-300]
    back, again = (there(encode_sound(crew, sound, width=width)) for width in (LONGEST_WHOLE, WIDTH))
    assert back.shape == latents.shape
    torch.testing.assert_close(again, back, rtol=0, atol=1e-5)


@pytest.mark.parametrize("frames", [124, 362])
def test_a_sound_decoded_and_encoded_in_slices_is_diffusers_bit_for_bit(
    models: Models, crew: VaeCrew, frames: int
) -> None:
    vae, latents = models.audio_vae, noise(1, 32, 2, audio_latents(frames))
    mean, std = (torch.tensor(values).view(1, -1, 1) for values in (vae.config.latents_mean, vae.config.latents_std))
    made = there(decode_sound(crew, latents))
    with torch.no_grad():
        waveform = vae.decode(latents[0].permute(1, 0, 2).contiguous() * std + mean).sample
        back = (vae.encode(waveform[..., :-300]).latent_dist.mode() - mean) / std
    assert torch.equal(made, waveform.permute(1, 0, 2))
    assert torch.equal(there(encode_sound(crew, made[..., :-300])), back.permute(1, 0, 2)[None])


@pytest.mark.parametrize("slices", [1, 2, 5])
def test_layers_in_slices_of_any_number_give_the_bits_of_the_whole(
    models: Models, monkeypatch: pytest.MonkeyPatch, slices: int
) -> None:
    vae, latents = models.audio_vae, noise(2, 32, 21)
    with torch.no_grad():
        whole = vae.decode(latents).sample
        back = vae.encode(whole).latent_dist.mode()
        # 21 latents are 537,600 bytes of each of the last levels.
        monkeypatch.setattr(sound_slices, "SOUND_SLICE_BYTES", 540_000 // slices)
        with sliced(vae):
            assert torch.equal(vae.decode(latents).sample, whole)
            assert torch.equal(vae.encode(whole).latent_dist.mode(), back)


def test_layers_have_their_own_code_back_after_an_error(models: Models) -> None:
    vae = models.audio_vae
    forwards = [layer.forward for layer in vae.modules()]
    with sliced(vae):
        assert [layer.forward for layer in vae.modules()] != forwards
    assert [layer.forward for layer in vae.modules()] == forwards
    with pytest.raises(RuntimeError, match="channels"), sliced(vae):
        vae.decode(noise(2, 31, 5))
    assert [layer.forward for layer in vae.modules()] == forwards
    assert not any("forward" in vars(layer) for layer in vae.modules())


def test_fifteen_seconds_of_sound_take_little_more_memory_than_five(crew: VaeCrew) -> None:
    grown = {}
    for frames in (362, 124, 362):  # the first one warms up
        latents = noise(1, 32, 2, audio_latents(frames))
        sound, grown[frames] = peak_growth(lambda latents=latents: there(decode_sound(crew, latents)))
        grown[-frames] = peak_growth(lambda sound=sound: encode_sound(crew, sound))[1]
    # Whole they take 178 MB more to decode and 61 MB more to encode. The last layers' results remain, and what their
    # convolutions take without AVX-512.
    most = 40e6 if convolves_with_avx512(torch.device("cpu")) else 90e6
    assert grown[362] - grown[124] < most, grown
    assert grown[-362] - grown[-124] < most, grown


def test_memory_does_not_grow_with_the_length_of_the_sound(crew: VaeCrew) -> None:
    grown = {}
    for length in (WIDTH, 3 * WIDTH, 10 * WIDTH):  # the first one warms up
        latents = noise(1, 32, 2, length)
        sound, grown[length] = peak_growth(lambda latents=latents: there(decode_sound(crew, latents, width=WIDTH)))
        grown[-length] = peak_growth(lambda sound=sound: encode_sound(crew, sound, width=WIDTH))[1]
    # Whole, 10 s more take 180 MB to decode and 60 MB to encode. The result itself is 2.7 MB, and joined from pieces.
    assert grown[10 * WIDTH] - grown[3 * WIDTH] < 15e6, grown
    assert grown[-10 * WIDTH] - grown[-3 * WIDTH] < 15e6, grown


def test_sound_that_has_no_room_is_run_in_shorter_pieces(models: Models, crew: VaeCrew) -> None:
    latents = noise(1, 32, 2, LONGEST_WHOLE // 4 + 10)
    whole = there(decode_sound(crew, latents))
    widths: list[int] = []

    def hook(_: Any, inputs: tuple[torch.Tensor]) -> None:
        widths.append(inputs[0].shape[-1])
        if widths[-1] > LONGEST_WHOLE // 4:
            raise MemoryError

    handle = models.audio_vae.decoder.register_forward_pre_hook(hook)
    made = there(decode_sound(crew, latents))
    handle.remove()
    assert widths == [LONGEST_WHOLE // 4 + 10, LONGEST_WHOLE // 4, LONGEST_WHOLE // 4]
    torch.testing.assert_close(made, whole, rtol=0, atol=1e-6)


class OwnVae(nn.Module):
    """A class that a checkpoint may bring: nothing is known of its layers."""

    def __init__(self, vae: Any) -> None:
        super().__init__()
        self.config, self.decode, self.encode = vae.config, vae.decode, vae.encode


def test_a_class_of_the_checkpoints_own_is_run_whole(models: Models) -> None:
    own = stages.crew(Models(**{**vars(models), "audio_vae": OwnVae(models.audio_vae)}))
    latents = noise(1, 32, 2, 2 * WIDTH)
    whole = there(decode_sound(stages.crew(models), latents))
    assert torch.equal(there(decode_sound(own, latents, width=WIDTH)), whole)
    assert there(encode_sound(own, whole, width=WIDTH)).shape == latents.shape
