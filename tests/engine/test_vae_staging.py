"""Where the VAEs are, at every step: by the record and in truth, in success and failure; and their memory over time.

The device of the placement tests is torch's ``meta``: a tensor there has a place and no values, so that nothing can be
computed, and all that is placed can be seen.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine.contract.errors import JobError
from engine.contract.geometry import audio_latents
from engine.models.bundle import Models
from engine.stages.decode_audio import decode_audio
from engine.stages.decode_video import decode_video
from engine.vae.crew import VaeCrew
from engine.vae.sound import decode_sound, encode_sound
from engine.vae.spread import decode_frames, encode_pixels
from engine.vae.staging import VaeStaging
from tests.support import stages
from tests.support.memory import resident_bytes

META = torch.device("meta")
VAES = frozenset({"vae", "audio_vae"})


@pytest.fixture
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint, keep=VAES)


@pytest.fixture
def crew(models: Models) -> VaeCrew:
    return stages.crew(models, tile=64, overlap=16)


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def nothing() -> None:
    pass


def where(models: Models) -> dict[str, set[str]]:
    """Types of the devices of each VAE's weights."""
    return {
        name: {tensor.device.type for tensor in getattr(models, name).state_dict(keep_vars=True).values()}
        for name in VAES
    }


def addresses(models: Models) -> list[int]:
    return [parameter.data_ptr() for name in sorted(VAES) for parameter in getattr(models, name).parameters()]


def test_one_vae_at_a_time_is_on_the_device_and_its_weights_come_back_themselves(models: Models) -> None:
    staging = VaeStaging(models, META, rank=0, resident=False)
    before = addresses(models)
    for name, other in (("vae", "audio_vae"), ("audio_vae", "vae")):
        with staging.bring(name, stage="test") as model:
            assert model is getattr(models, name)
            assert (staging.inside, where(models)) == ((name,), {name: {"meta"}, other: {"cpu"}})
            staging.check()
        assert (staging.inside, where(models)) == ((), {"vae": {"cpu"}, "audio_vae": {"cpu"}})
        staging.check()
    assert addresses(models) == before


def test_an_error_in_use_takes_the_vae_out(models: Models) -> None:
    staging = VaeStaging(models, META, rank=0, resident=False)
    with pytest.raises(ValueError, match="planted"), staging.bring("vae", stage="test"):
        raise ValueError("planted")
    assert staging.inside == ()
    staging.check()


def test_what_an_abandoned_use_left_in_goes_out_before_the_next_comes_in(models: Models) -> None:
    staging = VaeStaging(models, META, rank=0, resident=False)
    abandoned = staging.bring("vae", stage="test")
    abandoned.__enter__()
    with staging.bring("audio_vae", stage="test"):
        assert staging.inside == ("audio_vae",)
        staging.check()


def fail_to_move(monkeypatch: pytest.MonkeyPatch, *, after: int, times: int) -> None:
    """Let the device run out of memory after ``after`` tensors arrived, ``times`` times."""
    move, moved, failed = torch.Tensor.to, [0], [0]

    def limited(tensor: torch.Tensor, *arguments: Any, **options: Any) -> torch.Tensor:
        if arguments == (META,):
            moved[0] += 1
            if moved[0] > after and failed[0] < times:
                moved[0] = 0
                failed[0] += 1
                raise torch.OutOfMemoryError("planted")
        return move(tensor, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "to", limited)


def test_a_device_that_fills_up_on_the_way_in_is_left_as_it_was(
    models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging = VaeStaging(models, META, rank=2, resident=False)
    before = addresses(models)
    fail_to_move(monkeypatch, after=5, times=2)
    with pytest.raises(JobError) as caught, staging.bring("vae", stage="decode_video"):
        raise AssertionError("it cannot be in")
    assert caught.value.code == "out_of_memory"
    assert caught.value.details == {"stage": "decode_video", "rank": 2, "held": {"vae": 0, "audio_vae": 0}}
    assert "Its device holds: nothing of ours" in caught.value.message
    assert (staging.inside, addresses(models)) == ((), before)
    staging.check()


def test_the_way_in_is_tried_again_with_freed_caches(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    staging = VaeStaging(models, META, rank=0, resident=False)
    fail_to_move(monkeypatch, after=5, times=1)
    with staging.bring("vae", stage="test"):
        assert staging.inside == ("vae",)
        staging.check()


def test_resident_vaes_stay_whatever_happens(models: Models) -> None:
    staging = VaeStaging(models, META, rank=0, resident=True)
    with pytest.raises(ValueError, match="planted"), staging.bring("vae", stage="test"):
        raise ValueError("planted")
    assert (staging.inside, where(models)) == (("vae", "audio_vae"), {"vae": {"meta"}, "audio_vae": {"meta"}})
    staging.check()
    assert staging.held()["vae"] == sum(parameter.nbytes for parameter in models.vae.parameters())


def test_vaes_that_do_not_fit_together_are_staged(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    vae_tensors = len(models.vae.state_dict()) + sum(1 for _ in models.vae.buffers())
    fail_to_move(monkeypatch, after=vae_tensors + 3, times=10**6)
    staging = VaeStaging(models, META, rank=0, resident=True)
    assert (staging.inside, where(models)) == ((), {"vae": {"cpu"}, "audio_vae": {"cpu"}})
    staging.check()


def test_the_record_is_true_at_every_step_of_decoding_and_encoding(models: Models, crew: VaeCrew) -> None:
    """And only what is used is in."""
    seen: list[tuple[str, tuple[str, ...]]] = []

    def note(name: str) -> Any:
        def hook(*_: Any) -> None:
            seen.append((name, crew.staging.inside))
            crew.staging.check()

        return hook

    for model, name in ((models.vae.decoder, "vae"), (models.vae.encoder, "vae"), (models.audio_vae.decoder, "sound"),
                        (models.audio_vae.encoder, "sound")):  # fmt: skip
        model.register_forward_pre_hook(note(name))
    decode_sound(crew, noise(1, 32, 2, 8))
    assert crew.staging.inside == ()
    for _ in decode_frames(crew, noise(1, 24, 12, 4, 6), boundary=lambda: note("vae")(), ratio=16):
        assert crew.staging.inside == ("vae",)
    assert crew.staging.inside == ()
    encode_pixels(crew, noise(1, 3, 1, 64, 64), boundary=nothing, ratio=16)
    encode_sound(crew, noise(1, 2, 1600).clamp(-1, 1))
    assert crew.staging.inside == ()
    assert {place for place in seen if place[0] == "vae"} == {("vae", ("vae",))}
    assert {place for place in seen if place[0] == "sound"} == {("sound", ("audio_vae",))}


def broken(crew: VaeCrew) -> Iterator[torch.Tensor]:
    calls: list[int] = []

    def boundary() -> None:
        calls.append(1)
        if len(calls) == 2:
            raise ValueError("another rank failed")

    return decode_frames(crew, noise(1, 24, 12, 4, 4), boundary=boundary, ratio=16)


def test_a_decoding_that_fails_or_is_closed_takes_the_vae_out(crew: VaeCrew) -> None:
    with pytest.raises(ValueError, match="another rank failed"):
        list(broken(crew))
    assert crew.staging.inside == ()
    pieces = decode_frames(crew, noise(1, 24, 12, 4, 4), boundary=nothing, ratio=16)
    next(pieces)
    assert crew.staging.inside == ("vae",)
    pieces.close()  # type: ignore[attr-defined]
    assert crew.staging.inside == ()
    crew.staging.check()


def test_sound_that_runs_out_of_memory_is_tried_again_then_told(models: Models, crew: VaeCrew) -> None:
    latents = noise(1, 32, 2, 8)
    whole = decode_sound(crew, latents)
    calls: list[int] = []

    def hook(*_: Any) -> None:
        calls.append(1)
        if len(calls) != 2:
            raise MemoryError

    models.audio_vae.decoder.register_forward_pre_hook(hook)
    again = decode_sound(crew, latents)
    assert again is not None
    assert whole is not None
    assert torch.equal(again, whole)
    with pytest.raises(JobError) as caught:
        decode_sound(crew, latents)
    assert (caught.value.code, len(calls)) == ("out_of_memory", 4)
    assert caught.value.details["held"]["audio_vae"] > 0
    assert crew.staging.inside == ()


def test_the_soundtrack_of_362_frames_keeps_its_channels(models: Models, crew: VaeCrew) -> None:
    """Both ways, and each channel is what diffusers makes of it; the tiny decoder hears a channel swapped."""
    length = audio_latents(362)
    latents = noise(1, 32, 2, length)
    sound = decode_audio(stages.context(models), latents)
    assert sound is not None
    assert sound.shape == (1, 2, 800 * length)
    mean, std = (torch.tensor(v).view(1, -1, 1) for v in
                 (models.audio_vae.config.latents_mean, models.audio_vae.config.latents_std))  # fmt: skip
    batch = latents[0].permute(1, 0, 2).contiguous() * std + mean
    with torch.no_grad():
        reference = models.audio_vae.decode(batch, return_dict=False)[0]
        encoded = models.audio_vae.encode(sound[0][:, None], return_dict=False)[0].mode()
    assert torch.equal(sound[0], reference[:, 0])
    assert not torch.equal(sound[0, 0], sound[0, 1])
    back = encode_sound(crew, sound)
    assert back is not None
    assert back.shape == latents.shape
    assert torch.equal(back[0].permute(1, 0, 2), (encoded - mean) / std)


def test_three_hundred_requests_of_changing_geometry_do_not_grow_memory(models: Models) -> None:
    crew = stages.crew(models, tile=64, overlap=16, gather_workspace_mb=1)
    ctx = replace(stages.context(models), vaes=crew)
    after, kept = [], []
    for request in range(300):
        height, width = 2 + request % 3, 2 + request % 5
        for _ in decode_video(ctx, noise(1, 24, 2 + 5 * (request % 2), height, width)):
            pass
        kept.append(crew.workspace.bytes)
        if request % 50 == 49:
            gc.collect()
            after.append(resident_bytes())
    assert max(kept) <= 10**6
    assert kept[-1] > 0
    assert max(after[2:]) - after[1] < 8e6, after
