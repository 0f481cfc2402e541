"""How pictures and sound are shown to the text encoder and encoded, and what of it is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from engine.conditioning import Conditions, EncodedCondition, EncodedReference
from engine.contract.errors import JobError, RequestError
from engine.contract.media import Condition, Guide, Keyframe, Media
from engine.contract.media import EncodedReference as Entry
from engine.models.bundle import Models
from engine.runner_media import JobMedia, fit_source
from engine.stages.base import Prepared, PromptEmbeds
from engine.stages.denoise import denoise
from engine.stages.encode_media import encode_media
from engine.stages.encode_prompt import Shown, encode_prompt
from engine.vae.encode import normalise_pixels
from engine.vae.spread import encode_pixels
from tests.support import golden, stages

pytestmark = pytest.mark.usefixtures("one_thread")

SETTINGS = ("use_tiling", "use_slicing", "tile_sample_min_height", "tile_sample_min_width",
            "tile_sample_min_overlap_height", "tile_sample_min_overlap_width")  # fmt: skip


@pytest.fixture(scope="module")
def models(tiny_checkpoint: Path) -> Models:
    return stages.load(tiny_checkpoint)


def pixels(count: int, height: int = 32, width: int = 64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randint(0, 256, (count, height, width, 3), generator=generator, dtype=torch.uint8)


def settings(vae: Any) -> list[Any]:
    return [getattr(vae, name) for name in SETTINGS]


def shown(case: str) -> list[Shown]:
    """Return the media of a golden presentation: pictures of 64x96, clips sampled at 2 fps."""
    image, sound = Prepared(pixels(1, 64, 96)), torch.zeros((2, 800))

    def clip(count: int, waveform: torch.Tensor | None = None) -> Shown:
        return Shown("video", Prepared(pixels(count, 64, 96), waveform))

    still, voice = Shown("image", image), Shown("audio", Prepared(None, sound))
    return {
        "t2va": [],
        "fl2va_both": [still, still],
        "refs_image_video_sound_audio": [still, clip(56, sound), voice],
        "refs_order_audio_first": [voice, still, still, clip(22)],
        "ref_video_one_sampled_frame": [clip(5)],
    }[case]


@pytest.mark.parametrize("case", golden.index()["rules"]["presentation"])
def test_labels_blocks_and_times_are_the_golden_ones(models: Models, case: str) -> None:
    segments = golden.index()["rules"]["presentation"][case]
    tokenizer = models.tokenizer
    vision = [tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("vision_start", "vision_end")]
    ids, tags = [], []
    for segment in segments:
        if "text" in segment:
            found = tokenizer(segment["text"], add_special_tokens=False)["input_ids"]
            tags += [1] * len(found)
        else:
            pad = "video_pad" if segment["video_block"] else "image_pad"
            # One row stands for a block's: how many there are, the checkpoint's own processor decides.
            found = [vision[0], tokenizer.convert_tokens_to_ids(f"<|{pad}|>"), vision[1]]
            tags += [0] * len(found)
        ids += found
    seen: list[list[int]] = []
    handle = models.text_encoder.register_forward_pre_hook(
        lambda _, __, kwargs: seen.append(kwargs["input_ids"][0].tolist()), with_kwargs=True
    )
    embeds = encode_prompt(stages.context(models), prompt=segments[-1]["text"], shown=shown(case))
    handle.remove()
    assert embeds is not None
    pads = {tokenizer.convert_tokens_to_ids(f"<|{name}|>") for name in ("image_pad", "video_pad")}
    first_pads = [at for at, token in enumerate(seen[0]) if token not in pads or token != seen[0][at - 1]]
    assert [seen[0][at] for at in first_pads] == ids
    assert embeds.token_tags[first_pads].tolist() == tags


def test_a_picture_moves_the_text_and_guides_do_not(models: Models) -> None:
    ctx, picture = stages.context(models), pixels(1)
    media = [JobMedia(22, keyframes=((Keyframe(Media("p")), Prepared(it)),)) for it in (picture, 255 - picture)]
    first, second = (encode_prompt(ctx, prompt="a", shown=one.shown()) for one in media)
    assert first is not None
    assert second is not None
    assert first.prompt_embeds.shape == second.prompt_embeds.shape
    assert (first.prompt_embeds - second.prompt_embeds).abs().max() > 1e-3
    assert JobMedia(22, guides=((Guide(frame=0, media=Media("p")), Prepared(pixels(1))),)).shown() == []


def test_one_picture_takes_the_spatial_path_and_the_vaes_settings_stay(models: Models) -> None:
    before = settings(models.vae)
    picture, crew = pixels(1, 288, 320).permute(3, 0, 1, 2)[None], stages.crew(models)
    moments, clip = (
        encode_pixels(crew, frames, boundary=lambda: None, ratio=16, prepare=normalise_pixels)
        for frames in (picture, picture.expand(-1, -1, 17, -1, -1))
    )
    assert moments is not None
    assert clip is not None
    assert moments.shape == (1, 48, 1, 18, 20)
    assert clip.shape == (1, 48, 2, 18, 20)
    assert settings(models.vae) == before


def test_an_encoder_that_fails_leaves_the_vaes_settings(models: Models) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    before = settings(models.vae)
    handle = models.vae.encoder.register_forward_pre_hook(fail)
    with pytest.raises(JobError) as caught:
        encode_media(stages.context(models), [Prepared(pixels(22))])
    handle.remove()
    assert (caught.value.code, caught.value.details["stage"]) == ("out_of_memory", "encode_media")
    assert settings(models.vae) == before


def test_a_boundary_comes_before_each_encoding_and_a_report_after_each_medium(models: Models) -> None:
    calls = stages.Calls()
    media = [Prepared(pixels(1)), Prepared(pixels(5), torch.zeros((2, 900)))]
    made = encode_media(stages.context(models, calls), media)
    assert calls.log == ["boundary", (1, 2), "boundary", "boundary", (2, 2)]
    assert made is not None
    assert made[1].video is not None
    assert made[1].audio is not None
    assert made[1].video.shape == (1, 24, 2, 2, 4)
    assert made[1].audio.shape == (1, 32, 2, 2)


def test_the_same_picture_is_the_same_latent_whatever_the_generators_say(models: Models) -> None:
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        made = encode_media(stages.context(models), [Prepared(pixels(1))])
        assert made is not None
        found.append(made[0].video)
    assert torch.equal(*found)


def latents(frames: int, *, height: int = 2, width: int = 4) -> torch.Tensor:
    return torch.randn((1, 24, frames, height, width), generator=torch.Generator().manual_seed(frames))


MISFITS: dict[str, tuple[Conditions, tuple[str, ...]]] = {
    "another canvas": (Conditions((EncodedCondition(0, latents(1, height=4)),)), ("64x64", "64x32")),
    "longer than the video": (Conditions((EncodedCondition(5, latents(7)),)), ("5", "26", "22")),
    "behind the end": (Conditions((EncodedCondition(22, latents(1)),)), ("22",)),
    "sound behind the end": (Conditions((EncodedCondition(12, None, torch.zeros(1, 32, 2, 18)),)), ("18", "17")),
    "no numbers": (Conditions((), (EncodedReference("image", latents(1) / 0),)), ("finite",)),
    "another model": (Conditions((), (EncodedReference("image", torch.zeros(1, 4, 1, 2, 4)),)), ("24",)),
}


@pytest.mark.parametrize("name", MISFITS)
def test_conditions_of_another_video_are_refused_before_any_forward(models: Models, name: str) -> None:
    conditions, words = MISFITS[name]
    calls = stages.Calls()
    embeds = PromptEmbeds(torch.zeros(1, 3, models.facts.text_dim), torch.ones(3, dtype=torch.long))
    with pytest.raises(RequestError) as caught:
        denoise(
            stages.context(models, calls),
            embeds,
            width=64,
            height=32,
            frames=22,
            steps=1,
            seed=0,
            conditions=conditions,
        )
    assert all(word in caught.value.message for word in words), caught.value.message
    assert caught.value.remedy
    assert calls.log == []


def test_conditions_survive_the_way_through_a_part() -> None:
    conditions = Conditions(
        (EncodedCondition(3, latents(2)), EncodedCondition(0, None, torch.ones(1, 32, 2, 4))),
        (EncodedReference("video_audio", latents(7), torch.ones(1, 32, 2, 40)), EncodedReference("image", latents(1))),
    )
    facts = conditions.facts()
    again = Conditions.read(
        conditions.named(),
        [Condition(**entry) for entry in facts["conditions"]],
        [Entry(**entry) for entry in facts["references"]],
    )
    assert again.blocks() == conditions.blocks()
    assert again.facts() == facts
    assert sorted(conditions.named()) == [
        "conditions.0.video",
        "conditions.1.audio",
        "references.0.audio",
        "references.0.video",
        "references.1.video",
    ]


def test_a_source_is_held_and_silent_to_the_length_of_the_timeline() -> None:
    short = fit_source(Prepared(pixels(3), torch.ones((2, 100))), width=64, height=32, frames=5)
    assert short.frames is not None
    assert short.waveform is not None
    assert torch.equal(short.frames[3:], pixels(3)[-1:].expand(2, -1, -1, -1))
    assert short.waveform.shape == (2, 8 * 800)
    assert short.waveform.sum() == 200
    long = fit_source(Prepared(pixels(9)), width=64, height=32, frames=5)
    assert long.frames is not None
    assert torch.equal(long.frames, pixels(9)[:5])
    sound = fit_source(Prepared(None, torch.ones((2, 9000))), width=64, height=32, frames=5)
    assert sound.frames is not None
    assert sound.waveform is not None
    assert sound.frames.shape == (5, 32, 64, 3)
    assert sound.waveform.shape == (2, 6400)
