"""Paged FlashAttention behind one contract, over every version that users have.

limits.py     what each variant can do, as data, with the sources it was read from
presence.py   what is installed: distributions, versions, signatures
probe.py      what the installed kernels really do, tried once on the device
backend.py    one backend per variant, and the family that takes the first which serves a spec
op.py         plan() and run()
step.py       a batch in the form that the libraries take
calls.py      one function per library
offers.py     what builtin.py offers
table.py      writes docs/backends/flash_attn.md
"""
