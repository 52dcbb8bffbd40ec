"""The engine: continuous batching of one model over any backend and any allocator.

runner.py     what an engine needs of a model      layers.py     ops, caches and plans of its layers
sampling.py   from logits to a token               request.py    one request on its way
scheduler.py  who runs in the next step            step.py       a step's tensors
models.py     names to models, through plugins     checks.py     what is refused at once
engine.py     the loop around them
"""

from pagedattn.engine.engine import Engine
from pagedattn.engine.output import Completion, EngineStats, FinishReason, Progress, StepOutput
from pagedattn.engine.runner import LayerAttention, ModelRunner
from pagedattn.engine.sampling import SamplingParams

__all__ = [
    "Completion",
    "Engine",
    "EngineStats",
    "FinishReason",
    "LayerAttention",
    "ModelRunner",
    "Progress",
    "SamplingParams",
    "StepOutput",
]
