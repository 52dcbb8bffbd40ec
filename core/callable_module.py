"""Two public functions share their name with a module: `pagedattn.backends()` with the package of
the built-in backends, `pagedattn.allocator()` with the contract. Importing a submodule rebinds the
parent's attribute to it, so these modules are made callable and stand for the function too."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


def make_callable(module: str, function: str) -> None:
    """Calling `module` calls pagedattn.registry.<function>."""

    class CallableModule(ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            from pagedattn import registry

            return getattr(registry, function)(*args, **kwargs)

    sys.modules[module].__class__ = CallableModule
