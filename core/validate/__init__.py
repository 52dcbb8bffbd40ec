"""Argument checks that core makes for every backend.

Each check either returns or raises an error that names what is wrong; nothing is repaired.

    build.py    AttentionBatch.build(): a batch from plain lists
    batch.py    plan(): lengths, tables, slots, trees
    tensors.py  run(), write(), open(): dtypes, shapes, strides, devices, caches
"""
