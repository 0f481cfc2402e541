"""Stage ``encode_prompt``: a prompt to conditioning.

Promise: the prompt verbatim, no chat template, no special tokens; the rows are the text encoder's hidden state 50,
bit-equal to diffusers'. Raises what ``boundary`` raises.
"""

from __future__ import annotations

import torch

from .base import PromptEmbeds, StageContext

_TEXT_TAG = 1


@torch.no_grad()
def encode_prompt(ctx: StageContext, *, prompt: str) -> PromptEmbeds | None:
    """Encode ``prompt``; None on a rank without the text encoder.

    Returns:
        prompt_embeds [1, L, text_dim] in the text encoder's type and token_tags [L], both on the rank's device.
    """
    ctx.boundary()
    encoder = ctx.models.text_encoder
    if encoder is None:
        return None
    token_ids = ctx.models.tokenizer(prompt, add_special_tokens=False)["input_ids"]
    input_ids = torch.tensor([token_ids], dtype=torch.long, device=ctx.device)  # [1, L]
    hidden = encoder(
        input_ids=input_ids,
        attention_mask=torch.ones_like(input_ids),
        mm_token_type_ids=torch.zeros_like(input_ids),
        use_cache=False,
    ).last_hidden_state
    ctx.report(1, 1)
    return PromptEmbeds(hidden, torch.full((len(token_ids),), _TEXT_TAG, dtype=torch.long, device=ctx.device))
