"""The built-in backends and allocators, one folder each; none imports another."""

from pagedattn.callable_module import make_callable

make_callable(__name__, "backends")
