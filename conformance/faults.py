"""The collection of publicly reported faults that the suite's cases and mutants refer to.

KH-..: of kernels, AH-..: of allocators and engines. Each entry is a fault that somebody met in
practice and reported; the source says where.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

__all__ = ["FAULTS", "Fault"]


@dataclass(frozen=True)
class Fault:
    """kind    faults of one kind are caught by the same cases
    text    what goes wrong
    source  the public report
    """

    id: str
    kind: str
    text: str
    source: str


_COLLECTION = """
[addressing range]
KH-01 | page id times page stride computed in 32 bits | vllm-project/vllm PR 47671
KH-02 | query row times row stride computed in 32 bits | sgl-project/sglang issue 20389
[unused-slot poison]
KH-03 | weight 0 times NaN of a slot past the length is NaN | Dao-AILab/flash-attention issue 1745
KH-04 | vector load of V runs past the length | vllm-project/vllm PR 936
KH-05 | rows without a request write NaN into the padding page | nod-ai/amd-shark-ai PR 665
KH-06 | query rows of no request spoil real rows | sgl-project/sglang PR 15757
[block-table content]
KH-07 | a sentinel in the table is taken for block 0 | microsoft/onnxruntime PR 32391
KH-08 | the length is taken from the number of listed blocks | pegainfer-project/pegainfer issue 291
KH-09 | a length that claims more blocks than the row has | vllm-project/vllm-ascend issue 9098
[empty sequences]
KH-10 | a request without rows, with keys, in mid-batch | Dao-AILab/flash-attention issue 1713
KH-11 | decode path takes one row per request for granted | Dao-AILab/flash-attention issue 1537
KH-12 | a part of a prefix in which some requests have no keys | sgl-project/sglang PR 22688
[tail of the last block]
KH-13 | fewer keys than a block: the rest of the block is attended to | pytorch/pytorch issue 159247
KH-14 | a last block that is full counts as empty | Wenyueh/MinivLLM issue 76
KH-15 | blocks are counted by floor here, by ceiling there | AI-Hypercomputer/maxtext PR 1777
[block size and placement]
KH-16 | another page size gives another answer | flashinfer-ai/flashinfer issue 490
KH-17 | block size taken for a power-of-two tile | ROCm/aiter PR 2190
KH-18 | blocks smaller than the tile of keys | Dao-AILab/flash-attention PR 824
[head size]
KH-19 | head sizes that are no power of two | sgl-project/sglang issue 1159
KH-20 | columns from 64 on are left out | triton-lang/triton issue 621
[GQA ratio]
KH-21 | group sizes outside of the compiled list | flashinfer-ai/flashinfer issue 996
KH-22 | more than 16 query heads per kv head | vllm-project/vllm PR 23424
KH-23 | query heads read the wrong kv head | quantumaikr/quant.cpp issue 61
[strides and layout]
KH-24 | block stride recomputed although K and V are interleaved | ROCm/aiter PR 3498
KH-25 | head offset lost in the strides: every head reads head 0 | BobMcDear/attorch issue 14
KH-26 | a view is read as if it were contiguous | cupy/cupy issue 3095
KH-27 | the writer takes all heads of a token for adjacent | vllm-project/vllm PR 22036
KH-28 | block size read off the shape of an HND pool | vllm-project/vllm issue 49012
[causal alignment]
KH-29 | causal mask aligned at the top left | pytorch/pytorch issue 108108
KH-30 | alignment of the mask depends on the ratio of lengths | ml-explore/mlx PR 2967
[chunk over cached prefix]
KH-31 | prefill ignores the cached prefix | golang-design/accel issue 10
KH-32 | the first row of a later chunk sees too few keys | pytorch/executorch PR 21749
[window edge]
KH-33 | prefill and decode disagree by one key of the window | mistralai/mistral-inference issue 60
KH-34 | one bound of the window given for both, or in one phase alone | ModelTC/LightLLM PR 1311
KH-35 | a tile wholly outside of the window gives NaN | vllm-project/vllm PR 4405
KH-36 | a window as long as the keys loses its other bound | Dao-AILab/flash-attention issue 1133
[softcap]
KH-37 | softcap after the mask: masked keys keep weight | Dao-AILab/flash-attention PR 1025
KH-38 | an option (softcap, scale) that never arrives | vllm-project/vllm-metal issue 665
[sinks]
KH-39 | the sink enters once per split | ROCm/rocm-libraries issue 12227
KH-40 | sinks are dropped on the path of the quantised cache | kekzl/imp issue 1345
[ALiBi]
KH-41 | ALiBi bias off by one, or counted from the wrong origin | vllm-project/vllm PR 945
[LSE and merging]
KH-42 | merging two parts without keys gives NaN | flashinfer-ai/flashinfer issue 4051
KH-43 | LSE in base 2 beside base e | flashinfer-ai/flashinfer issue 2113
KH-44 | rows without a key in either part | vllm-project/vllm PR 39148
[number range]
KH-45 | products overflow 16 bits | mlc-ai/mlc-llm PR 1870
KH-46 | weights or sums rounded to 16 bits | vllm-project/vllm PR 2368
[quantised cache]
KH-47 | cache scales that never arrive | flashinfer-ai/flashinfer issue 1023
KH-48 | scale storage made too late, or of the wrong shape | vllm-project/vllm PR 51091
[cache write]
KH-49 | slot -1 writes the last slot of the pool | vllm-project/vllm issue 43810
KH-50 | slots of new tokens are taken for adjacent | huggingface/text-generation-inference PR 2711
KH-51 | more rows than slots in a padded step | vllm-project/vllm PR 13922
[order of write and read]
KH-52 | a decode row without its own key | harvard-edge/cs249r_book PR 1953
[graph replay]
KH-53 | metadata for fewer rows than a padded step has | xLLM-AI/xllm PR 1939
[launch limits]
KH-54 | more requests than a launch dimension holds | Dao-AILab/flash-attention issue 1786
[batch invariance]
KH-55 | number of splits depends on the batch | lightseekorg/tokenspeed issue 904
KH-56 | contents of a neighbour change a result | kekzl/imp issue 1314
[stream order]
KH-57 | launched on another stream than the current one | pytorch/pytorch PR 182770
[split and combine]
KH-58 | all scores of a row kept in a memory that is too small | vllm-project/vllm PR 1510
KH-59 | the reduction over splits ends too early | ROCm/vllm PR 22
[block identity]
AH-01 | equal hashes are trusted, tokens not compared | openvinotoolkit/openvino.genai issue 3722
[extra identity keys]
AH-02 | the adapter is no part of a block's identity | vllm-project/vllm issue 3264
AH-03 | blocks of a replaced adapter are still found | vllm-project/vllm PR 42495
[fully cached prompt]
AH-04 | a wholly cached prompt leaves no token to compute | vllm-project/vllm PR 11186
AH-05 | a prefix that is the whole request | huggingface/transformers PR 42094
[partial blocks]
AH-06 | a partial block is published | Avarok-Cybersecurity/atlas issue 1193
[eviction of live blocks]
AH-07 | pinning a prefix misses its last block | sgl-project/mini-sglang PR 52
AH-08 | eviction forgets other holders | Avarok-Cybersecurity/atlas PR 373
[double free]
AH-09 | one block twice in a release | vllm-project/vllm issue 42571
AH-10 | two paths free the same block | sgl-project/sglang-jax PR 982
[leaks]
AH-11 | one block per request is never returned | kekzl/imp issue 1115
AH-12 | a failed open leaks what it had matched | Avarok-Cybersecurity/atlas PR 373
AH-13 | abort in an unusual state keeps blocks | vllm-project/vllm issue 46283
[eviction order]
AH-14 | a middle block is evicted before the last | llm-d/llm-d-inference-sim issue 704
AH-15 | use does not renew a block's age | vllm-project/vllm PR 7193
[stale index entries]
AH-16 | a block taken for new content is still found as the old | vllm-project/vllm PR 4764
AH-17 | a removed entry comes back, or its removal goes unsaid | vllm-project/vllm issue 49125
[hits on uncomputed blocks]
AH-18 | blocks are found before they are written | GeeeekExplorer/nano-vllm PR 209
[capacity accounting]
AH-19 | a failed allocation leaves hits pinned, or counts them as free | vllm-project/vllm PR 11565
AH-20 | counters drift from the blocks | UbiquitousLearning/mllm PR 656
[no progress]
AH-21 | a request larger than the pool waits for ever | vllm-project/vllm issue 35541
AH-22 | all requests need one block and none is free | deepspeedai/DeepSpeed-MII issue 339
AH-23 | blocks held behind a head of the queue that cannot go on | vllm-project/vllm PR 57104
[watermark]
AH-24 | a reserve without an upper bound | vllm-project/vllm PR 11
[copy-on-write and fork]
AH-25 | a copy shares what it should have copied | raullenchai/Rapid-MLX issue 196
AH-26 | a fork that fails half way | huggingface/transformers PR 46117
AH-27 | a fork does not count itself as a holder | apache/tvm PR 16666
[window freeing]
AH-28 | window release with a stale offset | vllm-project/vllm PR 40019
[rollback of drafts]
AH-29 | rollback takes away too much | lablup/mlxcel issue 994
AH-30 | rejected drafts are cached | vllm-project/vllm PR 18668
[table overflow]
AH-31 | growth beyond the width of the table | gittensor-ai-lab/sparkinfer issue 33
[swap and offload]
AH-32 | swap-in counts blocks wrongly | vllm-project/vllm PR 8824
AH-33 | blocks freed while a copy still reads them | vllm-project/vllm issue 52360
[performance collapse]
AH-34 | the cost of an eviction grows with the pool | vllm-project/vllm PR 7209
[identity across processes]
AH-35 | keys differ from process to process | vllm-project/vllm PR 51875
[preemption]
AH-36 | output changes after preemption | vllm-project/vllm issue 16832
[ring or rotating caches]
AH-37 | a rotating cache is not reset | ml-explore/mlx-examples issue 1000
AH-38 | an offset changed between two uses | ml-explore/mlx-lm issue 1699
[engine integration]
AH-39 | state survives from one batch to the next | huggingface/transformers PR 45943
"""


def _parsed(collection: str) -> dict[str, Fault]:
    found = {}
    kind = ""
    for line in filter(None, collection.splitlines()):
        if line.startswith("["):
            kind = line.strip("[]")
        else:
            id, text, source = line.split(" | ")
            found[id] = Fault(id, kind, text, source)
    return found


FAULTS: Mapping[str, Fault] = MappingProxyType(_parsed(_COLLECTION))
"""id -> fault, kernels first, faults of a kind together"""
