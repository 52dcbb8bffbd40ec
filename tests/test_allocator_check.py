"""check() of the paged allocator finds what is broken."""

import pytest
from paged_tools import make, prefill, toks


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (lambda a: a._pool.refs.__setitem__(0, 2), "refcount"),
        (lambda a: a._pool.pins.__setitem__(0, 1), "pins"),
        (lambda a: a._pool.room.add(0), "free-list"),
        (lambda a: a._pool.room.add(6), "free-list"),
        (lambda a: a._pool.room.remove(5), "free-list"),
        (lambda a: a._pool.room.remove(5), "stats-identity"),
        (lambda a: a._pool.room.length.__setitem__(3, 4), "free-list"),
        (lambda a: a._pool.staged.__setitem__(0, None), "free-list"),
        (lambda a: a._pool.refs.pop(1), "stats-identity"),
        (lambda a: setattr(a._pool, "reserved", 1), "stats-identity"),
        (lambda a: setattr(a._pool, "reclaimable", 2), "stats-identity"),
        (lambda a: a._pool.staged.__setitem__(5, None), "free-list"),
        (lambda a: setattr(a._sequences[1], "spare", 1), "spare"),
        (lambda a: a._pool.refs.__setitem__(1, 2), "spare"),
        (lambda a: a._policy.pop(), "policy"),
        (lambda a: a._sequences[1].table.pop(), "table-length"),
        (lambda a: a._sequences[1].table.__setitem__(1, 0), "table-ids"),
        (lambda a: a._sequences[1].table.__setitem__(0, -1), "table-ids"),
        (lambda a: setattr(a._sequences[1], "committed", 7), "commit"),
        (lambda a: setattr(a._sequences[1], "tail", b""), "content"),
        (lambda a: a._index.unpublish((0,)), "content"),
        (lambda a: a._index.hold(a._index.node_of[0]), "index"),
        (lambda a: setattr(a._index.node_of[0], "block", -1), "index"),
        (lambda a: setattr(a._index.roots[b""], "child", None), "index"),
        (lambda a: a._index.roots[b""].others.clear(), "index"),
        (lambda a: a._index.roots.clear(), "index"),
    ],
)
def test_check_finds(damage, rule):
    a = make()
    prefill(a, 1, toks(6))
    prefill(a, 2, toks(4, 100))
    a.close(2)
    assert a.check() == []
    damage(a)
    assert rule in {violation.rule for violation in a.check()}
