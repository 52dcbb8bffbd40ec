"""The entry point names this module. Its hooks are called whenever backends are listed, so it
imports nothing heavy: the target is resolved on first use."""

from pagedattn import Offer, hookimpl


@hookimpl
def pagedattn_backends() -> list[Offer]:
    return [
        Offer(
            "template",
            "pagedattn_template.backend:Backend",
            summary="torch SDPA over gathered blocks, in 25 lines: start yours from it",
            priority=-200,  # an example: select() prefers any other; a real kernel leaves it out
        )
    ]
