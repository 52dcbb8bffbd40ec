"""Triton kernels for paged attention on GPUs: one tile kernel for every phase, a merge, a write.

backend.py says what is served, heuristics.py chooses tiles, work.py cuts a step into work items,
tile.py is the kernel (and explains the algorithm), combine.py merges shared-out tiles, write.py
stores keys and values, launch.py is where kernels are launched, cost.py predicts what they cost,
version.py tells a Triton that is too old.
"""
