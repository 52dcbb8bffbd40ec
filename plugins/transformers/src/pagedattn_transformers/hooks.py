"""What this distribution offers; imports neither torch nor transformers."""

from __future__ import annotations

from pagedattn.hooks import Offer, hookimpl


@hookimpl
def pagedattn_model_runners() -> list[Offer]:
    return [
        Offer(
            "transformers",
            "pagedattn_transformers.load:load_model",
            summary="Hugging Face causal language models: 'smollm2', a directory, a model object",
            requires=("transformers",),
            install="pip install transformers accelerate gguf",
        )
    ]
