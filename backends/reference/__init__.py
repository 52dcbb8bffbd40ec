"""The reference backend: the specification as plain PyTorch."""

from pagedattn.backends.reference.backend import ReferenceBackend

__all__ = ["ReferenceBackend"]
