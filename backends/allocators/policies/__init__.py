"""Eviction policies beside the default LRU, one a file.

chain.py   what all share: levels of priority, and deepest block of a release first
scored.py  policies that rank a block once, when it is released: fifo.py, lfu.py, cost.py
memory.py  bounded memory of keys, also of evicted ones
s3fifo.py  three queues
return_rate.py  our best: expected returns per unit of time
    history.py  uses by key     runs.py  blocks released together, observed until they return
    hazards.py  how likely a return is at each age, learned     gittins.py  what that is worth
    referee.py  whether to follow it or LRU
"""
