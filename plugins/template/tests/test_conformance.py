"""The suite judges the backend: one test per case."""

from pagedattn.conformance import BackendConformance


class TestTemplate(BackendConformance):
    backend = "template"
