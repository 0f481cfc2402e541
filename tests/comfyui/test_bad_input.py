"""What a person reads on the node when an input is wrong; the engine serves the next prompt."""

from __future__ import annotations

from typing import Any

import pytest

from tests.comfyui.conftest import make_t2va
from tests.support.comfyui import ComfyUI, Run, run_prompt

pytestmark = [pytest.mark.comfyui, pytest.mark.ranks]


def _with_latent() -> dict[str, Any]:
    """Return the prompt with a latent of ComfyUI's own (4 channels, not nested)."""
    prompt = make_t2va()
    prompt["latent"] = {
        "class_type": "EmptyLatentImage",
        "inputs": {"width": 64, "height": 64, "batch_size": 1},
    }
    return prompt


def _with(**nodes: tuple[str, dict[str, Any]]) -> dict[str, Any]:
    """Return the prompt with these nodes; of those that are named as one of it, the inputs are added."""
    prompt = make_t2va()
    for name, (kind, inputs) in nodes.items():
        prompt.setdefault(name, {"class_type": kind, "inputs": {}})["inputs"] |= inputs
    return prompt


_IMAGE = ("LoadImage", {"image": "example.png"})
_CLIP = ("LoadVideo", {"file": "clip.mp4"})
_PARTS = ("GetVideoComponents", {"video": ["clip", 0]})
_ENCODE, _SAMPLE = "H3EngineTextEncode", "H3EngineSampler"


def _keyframes(**inputs: Any) -> dict[str, Any]:
    keys = ("H3EngineKeyframes", {"width": 64, "height": 64, "seconds": 0.9, **inputs})
    return _with(image=_IMAGE, keys=keys, encode=(_ENCODE, {"keyframes": ["keys", 0]}))


def _reference(kind: str, *, latent: bool = True, **inputs: Any) -> dict[str, Any]:
    """Return the prompt with one reference, with example.png and clip.mp4 at hand."""
    more = {"latent": ["latent", 0]} if latent else {}
    ref = (f"H3EngineReference{kind}", inputs)
    encode = (_ENCODE, {"references": ["ref", 0], **more})
    many = ("RepeatImageBatch", {"image": ["image", 0], "amount": 10})
    brief = ("EmptyAudio", {"duration": 1.9, "sample_rate": 44_100, "channels": 2})
    return _with(image=_IMAGE, clip=_CLIP, parts=_PARTS, many=many, brief=brief, ref=ref, encode=encode)


def _guide(**inputs: Any) -> dict[str, Any]:
    """Return the prompt with one guide, with example.png and clip.mp4 at hand."""
    made = {"engine": ["connect", 0], "conditioning": ["encode", 0], "latent": ["latent", 0]}
    guide = ("H3EngineGuide", {**made, "position": 0, "unit": "frames", **inputs})
    other = ("H3EngineEmptyLatent", {"width": 96, "height": 64, "seconds": 0.9})
    sample = (_SAMPLE, {"conditioning": ["guide", 0]})
    return _with(image=_IMAGE, clip=_CLIP, parts=_PARTS, other=other, guide=guide, sample=sample)


def _both() -> dict[str, Any]:
    """Return the prompt with keyframes and references."""
    prompt = _keyframes(first_frame=["image", 0])
    prompt["ref"] = {"class_type": "H3EngineReferenceImage", "inputs": {"image": ["image", 0]}}
    prompt["encode"]["inputs"] |= {"references": ["ref", 0], "latent": ["latent", 0]}
    return prompt


def _ending_at(node: str, prompt: dict[str, Any]) -> dict[str, Any]:
    """Return ``prompt`` with ``decode`` fed by ``node``, past the sampler."""
    prompt["decode"]["inputs"]["latent"] = [node, 0]
    return prompt


CASES = {
    "an empty prompt": (make_t2va(encode__prompt=" \n"), "encode", ("prompt is empty", "Describe")),
    "a width off the lattice": (
        make_t2va(latent__width=848, latent__height=480),
        "latent",
        ("width = 848", "832 or 864"),
    ),
    "an aspect too wide": (make_t2va(latent__width=1024, latent__height=128), "latent", ("1:4 to 4:1", "width = 1024")),
    "a latent of another model": (_with_latent(), "sample", ("two streams", "latent = '[1, 4, 8, 8]'")),
    "a latent of another model to decode": (_ending_at("latent", _with_latent()), "decode", ("two streams",)),
    "an unknown model": (make_t2va(connect__model="nothing/here"), "connect", ("no checkpoint", "demo")),
    "a wrong model path": (
        make_t2va(connect__model_path="/nowhere"),
        "connect",
        ("no such folder", "/nowhere"),
    ),
    "a folder without a checkpoint": (
        make_t2va(connect__model_path=' "/tmp" '),
        "connect",
        ("modular_model_index.json", "model_path = '/tmp'"),
    ),
    "less than five frames": (make_t2va(latent__seconds=0.1), "latent", ("0.21 s", "seconds = 0.1")),
    "an unknown device": (make_t2va(connect__device="tpu"), "connect", ("device = 'tpu'", "auto")),
    "a URL that is none": (make_t2va(connect__url="ftp://localhost:8190"), "connect", ("http://host:port",)),
    "an engine that is not there": (
        make_t2va(connect__url="http://127.0.0.1:9"),
        "encode",
        ("does not answer (connection refused)", "url"),
    ),
    "ranks that cannot be laid out": (
        make_t2va(connect__ranks=3, connect__ring_degree=2),
        "connect",
        ("ranks = 3", "ring_degree", "0 or 2"),
    ),
    "weights that are no numbers": (make_t2va(connect__rank_weights="2,x"), "connect", ("rank_weights", "2,1,1")),
    "weights far apart": (make_t2va(connect__rank_weights="1,1e9"), "connect", ("1e-06 to 1e+06", "2,1,1")),
    "a text encoder in three": (make_t2va(connect__text_encoder_tp_degree=3), "connect", ("1, 2, 4 or 8",)),
    "too many weights": (make_t2va(connect__rank_weights="2,1,1"), "encode", ("3 weights", "2 ranks", "rank_weights")),
    "a pinned length that is too short": (
        make_t2va(sample__pad_seq_len=64),
        "sample",
        ("pad_seq_len = 64", "rows", "Use 192"),
    ),
    "a pinned length between two multiples": (
        make_t2va(sample__pad_seq_len=200),
        "sample",
        ("multiple of 64", "Use 192"),
    ),
    "keyframes without a picture": (_keyframes(), "keys", ("no keyframe", "first frame, a last frame")),
    "keyframes with half a size": (
        _keyframes(first_frame=["image", 0], height=0),
        "keys",
        ("width and height together", "height = 0"),
    ),
    "keyframes and references": (_both(), "encode", ("do not go together", "references = 1", "guides")),
    "references without a latent": (
        _reference("Image", image=["image", 0], latent=False),
        "encode",
        ("size and duration", "Connect the latent"),
    ),
    "ten pictures": (_reference("Image", image=["many", 0]), "encode", ("At most 9 image", "references = 10")),
    "a sound alone": (_reference("Audio", audio=["parts", 1]), "encode", ("alone", "image or video")),
    "an unknown reference size": (
        _reference("Image", image=["image", 0], reference_size="huge"),
        "ref",
        ("reference_size = 'huge'", "native, match, max, reference"),
    ),
    "a reference video of nothing": (_reference("Video", fps=24), "ref", ("no clip", "Connect a video")),
    "a video and pictures": (
        _reference("Video", video=["clip", 0], images=["image", 0]),
        "ref",
        ("Both video and images", "Connect one"),
    ),
    "a soundtrack of 1.9 s": (
        _reference("Video", images=["parts", 0], audio=["brief", 0]),
        "encode",
        ("at least 2 s", "1.90 s"),
    ),
    "a guide of nothing": (_guide(), "guide", ("nothing to hold", "Connect an image")),
    "a guide at half a frame": (_guide(image=["image", 0], position=1.5), "guide", ("position = 1.5", "seconds")),
    "a guide behind the end": (_guide(image=["image", 0], position=22), "guide", ("frames 0 to 21", "position = 22")),
    "a guide behind the end in seconds": (
        _guide(image=["image", 0], position=2.5, unit="seconds"),
        "guide",
        ("0 to 0.875 s", "position = 2.5"),
    ),
    "a guide before the start in seconds": (
        _guide(image=["image", 0], position=-1, unit="seconds"),
        "guide",
        ("-22 to -1 from the end", "position = -24"),
    ),
    "a guide in weeks": (_guide(image=["image", 0], unit="weeks"), "guide", ("unit = 'weeks'", "seconds")),
    "a guide longer than the video": (
        _guide(video=["clip", 0]),
        "guide",
        ("39 frames or more at frame 0", "22 frames", "video = "),
    ),
    "a guide for another canvas": (
        _guide(image=["image", 0], latent=["other", 0]),
        "sample",
        ("96x64", "64x64", "conditioning = "),
    ),
    "stages that are none": (make_t2va(connect__stages="decoders"), "connect", ("stages = 'decoders'", "generator")),
    "a pinned length beyond the limit": (make_t2va(sample__pad_seq_len=2**20), "sample", ("131072",)),
}


def _linked(name: str, value: int) -> dict[str, Any]:
    """Return the prompt with a number that comes through a link, which no schema checks."""
    prompt = make_t2va(**{f"connect__{name}": ["number", 0]})
    prompt["number"] = {"class_type": "PrimitiveInt", "inputs": {"value": value}}
    return prompt


CASES |= {
    f"a linked {name} of {value}": (_linked(name, value), "connect", (f"{name} = {value}", words))
    for name, value, words in [
        ("ulysses_degree", -1, "0 to 64"),
        ("ring_degree", 0, "1 to 64"),
        ("tp_degree", 0, "Use 1"),
        ("tp_degree", -2, "1 to 64"),
        ("ring_degree", 65, "1 to 64"),
        ("text_encoder_tp_degree", 0, "1, 2, 4 or 8"),
    ]
}


def _check_refusal(run: Run, prompt: dict[str, Any], *, node: str, choice: str) -> None:
    """Check that ComfyUI itself refused one choice on ``node``, nothing else, and names ``choice`` as one there is."""
    assert list(run.answer["node_errors"]) == [node], run.answer
    (error,) = run.answer["node_errors"][node]["errors"]
    assert error["type"] == "value_not_in_list", error
    facts = error["extra_info"]
    assert facts["received_value"] == prompt[node]["inputs"][facts["input_name"]]
    assert choice in ", ".join(facts["input_config"][1]["options"])


@pytest.mark.parametrize("case", CASES)
async def test_a_bad_input_gives_a_readable_error_on_its_node(comfyui: ComfyUI, case: str) -> None:
    prompt, node, words = CASES[case]
    run = await run_prompt(comfyui, prompt)
    if run.status != 200:  # later versions compare a choice with its list before anything runs
        _check_refusal(run, prompt, node=node, choice=words[-1])
        return
    (error,) = run.of("execution_error")
    assert error["node_id"] == node
    for word in words:
        assert word in run.error
    assert error["exception_type"].endswith("NodeError")
    assert run.texts(node)[-1] == "Failed"


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ("sample__steps", "steps"),
        ("latent__seconds", "seconds"),
        ("sample__seed", "seed"),
        ("sample__num_outputs", "num_outputs"),
        ("connect__ranks", "ranks"),
    ],
)
async def test_a_number_out_of_range_is_refused_by_the_schema(comfyui: ComfyUI, change: str, name: str) -> None:
    run = await run_prompt(comfyui, make_t2va(**{change: -1}))
    assert run.status == 400
    errors = run.answer["node_errors"][change.split("__", maxsplit=1)[0]]["errors"]
    assert any(error["extra_info"]["input_name"] == name for error in errors)


async def test_a_prompt_over_the_limit_is_refused_by_the_engine_and_the_next_one_runs(comfyui: ComfyUI) -> None:
    run = await run_prompt(comfyui, make_t2va(encode__prompt="snow " * 5000))
    assert run.of("execution_error")[0]["node_id"] == "encode"
    assert "limit" in run.error
    again = await run_prompt(comfyui, make_t2va())
    assert again.of("execution_success"), again.of("execution_error")


async def test_a_conditioning_of_another_width_is_refused(comfyui: ComfyUI) -> None:
    prompt = make_t2va()
    prompt["encode"] = {"class_type": "H3TestConditioning", "inputs": {"width": 48}}
    run = await run_prompt(comfyui, prompt)
    (error,) = run.of("execution_error")
    assert error["node_id"] == "sample"
    assert "48" in run.error
    assert "conditioning" in run.error


@pytest.mark.parametrize(("kind", "word"), [("batch", "batch"), ("channels", "[1, 16,"), ("sound", "audio latents")])
@pytest.mark.parametrize("node", ["sample", "decode"])
async def test_a_latent_that_cannot_be_is_refused(comfyui: ComfyUI, kind: str, word: str, node: str) -> None:
    prompt = make_t2va()
    prompt["odd"] = {"class_type": "H3TestLatent", "inputs": {"kind": kind}}
    prompt[node]["inputs"]["latent"] = ["odd", 0]
    run = await run_prompt(comfyui, prompt)
    (error,) = run.of("execution_error")
    assert error["node_id"] == node
    assert word in run.error


async def test_a_latent_with_content_gives_its_shape_and_a_note(comfyui: ComfyUI) -> None:
    prompt = make_t2va()
    prompt["full"] = {"class_type": "H3TestLatent", "inputs": {"kind": "full"}}
    prompt["sample"]["inputs"]["latent"] = ["full", 0]
    run = await run_prompt(comfyui, prompt)
    assert run.of("execution_success"), run.of("execution_error")
    assert "not its content" in run.texts("sample")[-1]
