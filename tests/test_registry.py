"""Discovery: whatever a plugin does wrong is one row, and the rest still works."""

import pytest
import torch
from plugin_support import GOOD, Plugins

import pagedattn as pa
from pagedattn import registry
from pagedattn.device import is_present
from pagedattn.hooks import OfferKind


def row(name: str) -> pa.Row:
    (found,) = [row for row in pa.backends() if row.name == name]
    return found


SPEC = pa.AttentionSpec(
    num_heads=4, num_kv_heads=4, head_dim=64, block_size=16, dtype=torch.float32, scale=0.125
)


def test_a_strangers_backend_comes_in_by_the_same_door(plugins: Plugins) -> None:
    plugins.good("acme", "acme")
    assert (row("acme").state, row("acme").source) == ("ready", "acme 1.2")
    assert row("acme").detail == "acme kernels"
    assert pa.backend("acme") is pa.backend("acme")
    assert pa.backend("acme").name == "acme"
    assert pa.select(SPEC).name == "acme"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import not_there_at_all", "ModuleNotFoundError: No module named 'not_there_at_all'"),
        ("raise SystemExit('bye')", "SystemExit: bye"),
        ("1/0", "ZeroDivisionError"),
        (
            "import pagedattn as pa\n@pa.hookimpl\ndef pagedattn_backend(): return []",
            "PluginValidationError",
        ),
        (
            "import pagedattn as pa\n@pa.hookimpl\ndef pagedattn_backends(): return [3]",
            "neither an Offer",
        ),
        (
            "import pagedattn as pa\n@pa.hookimpl\ndef pagedattn_backends(): return None",
            "TypeError",
        ),
    ],
)
def test_a_plugin_that_fails_is_one_row(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch, code: str, message: str
) -> None:
    plugins.install("bad", code)
    plugins.good("fine", "fine")
    assert row("bad").state == "broken"
    assert message in row("bad").detail
    assert "bad 1.2" in row("bad").detail
    assert row("fine").state == row("reference").state == "ready"
    with pytest.raises((pa.NotReady, pa.UnknownName)):
        pa.backend("bad")
    monkeypatch.setenv("PAGEDATTN_STRICT", "1")
    with pytest.raises(pa.PluginError, match="bad"):
        pa.backends()


def offer(text: str) -> str:
    return f"pa.Offer('late', {text})"


@pytest.mark.parametrize(
    ("text", "state", "detail"),
    [
        ("'no_such_module:Backend'", "broken", "No module named 'no_such_module'"),
        ("'math:pi'", "broken", "not a subclass of pagedattn.AttentionBackend"),
        ("lambda: Backend", "broken", "its name is 'other'"),
        (
            "'no_kernel:B', requires=['no_kernel'], install='pip install no-kernel'",
            "unavailable",
            "no_kernel is not installed; pip install no-kernel",
        ),
        ("lambda: 1/0, missing=lambda: 'needs a GPU'", "unavailable", "needs a GPU"),
        ("lambda: Backend, missing=lambda: 1/0", "broken", "ZeroDivisionError"),
        ("lambda: Backend, missing=lambda: True", "broken", "neither a sentence nor None"),
        ("lambda: pa.BlockAllocator", "broken", "not a subclass"),
        (
            "lambda: type('Needy', (Backend,), {'name': 'late', '__init__': lambda s, x: None})",
            "broken",
            "TypeError",
        ),
    ],
)
def test_offers_that_cannot_be_used(plugins: Plugins, text: str, state: str, detail: str) -> None:
    plugins.good("late", "other", offer=offer(text))
    assert row("late").state == state
    assert detail in row("late").detail
    with pytest.raises(pa.NotReady) as caught:
        pa.backend("late")
    assert caught.value.state == state
    (refusal,) = pa.check("late", SPEC, "cpu")
    assert (refusal.code, refusal.requested) == ("unavailable", state)
    assert detail in refusal.hint


@pytest.mark.parametrize(
    "fields",
    [
        "3, 'm:B'",
        "'late', 'm:B', priority='high'",
        "'late', 3",
        "'late', 'm:B', requires='torch'",
        "'late', 'm:B', api_version='1.0'",
    ],
)
def test_offers_are_checked(plugins: Plugins, fields: str) -> None:
    plugins.good("late", "late", offer=f"pa.Offer({fields})")
    assert row("late").state == "broken"
    assert "Offer: " in row("late").detail


def test_offers_may_list_what_they_require(plugins: Plugins) -> None:
    plugins.good("late", "late", offer="pa.Offer('late', lambda: Backend, requires=['torch'])")
    assert row("late").state == "ready"


def test_capabilities_and_refusals_are_typed(plugins: Plugins) -> None:
    code = GOOD.format(name="odd", version="(1, 0)", offer="Backend")
    for wrong in ("capabilities = lambda s, d: None", "refuse = lambda s, p, d: 'no'"):
        plugins.install_again("odd", code + f"Backend.{wrong}\n")
        (refusal,) = pa.check("odd", SPEC)
        assert refusal.code == "broken"
        assert "returned" in refusal.requested


@pytest.mark.parametrize(
    ("version", "state"),
    [("(1, 0)", "ready"), ("(2, 0)", "broken"), ("(0, 9)", "broken"), ("(1, 7)", "unavailable")],
)
def test_contract_versions(plugins: Plugins, version: str, state: str) -> None:
    plugins.good("dated", "dated", version=version)
    assert row("dated").state == state
    if state != "ready":
        assert "contract" in row("dated").detail


def test_a_name_is_never_taken_over(plugins: Plugins) -> None:
    plugins.good("impostor", "reference")
    plugins.good("aaa", "twin")
    plugins.good("bbb", "twin")
    states = {(r.name, r.source.split()[0]): str(r.state) for r in pa.backends()}
    assert states["reference", "pagedattn"] == "ready"
    assert states["reference", "impostor"] == "duplicate"
    assert (states["twin", "aaa"], states["twin", "bbb"]) == ("ready", "duplicate")
    assert type(pa.backend("reference")).__module__.startswith("pagedattn.")


def test_the_block_list(plugins: Plugins, monkeypatch: pytest.MonkeyPatch) -> None:
    plugins.install("noisy", "1/0")
    monkeypatch.setenv("PAGEDATTN_BLOCK", "noisy, reference")
    assert (row("noisy").state, row("reference").state) == ("blocked", "blocked")
    with pytest.raises(pa.NotReady, match="PAGEDATTN_BLOCK"):
        pa.backend("reference")


def test_blocking_one_twin_lets_the_other_in(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    plugins.good("aaa", "twin")
    plugins.good("bbb", "twin")
    monkeypatch.setenv("PAGEDATTN_BLOCK", "aaa")
    assert row("twin").source == "bbb 1.2"


def test_unknown_names_list_the_known_and_the_closest() -> None:
    with pytest.raises(pa.UnknownName) as caught:
        pa.backend("referense")
    assert caught.value.closest == "reference"
    assert "did you mean 'reference'?" in str(caught.value)
    with pytest.raises(LookupError, match=r"known: .*reference"):
        pa.backend("zzz")
    with pytest.raises(pa.UnknownName, match="did you mean 'paged'"):
        pa.allocator("pagd", num_blocks=1)
    with pytest.raises(pa.UnknownName, match="policy named 'lur'"):
        pa.allocator("paged", num_blocks=1, policy="lur")


def test_select_takes_the_best_that_serves(plugins: Plugins) -> None:
    plugins.good("fast", "fast", offer="pa.Offer('fast', lambda: Backend, priority=1000)")
    assert pa.select(SPEC).name == "fast"
    capped = pa.AttentionSpec(
        num_heads=4,
        num_kv_heads=4,
        head_dim=64,
        block_size=16,
        dtype=torch.float32,
        scale=0.125,
        softcap=5.0,
    )
    assert pa.select(capped).name == "reference"
    explained = {e.row.name: [r.code for r in e.refusals] for e in pa.explain(capped)}
    assert explained["fast"] == ["softcap"]
    assert explained["reference"] == []
    with pytest.raises(pa.Unsupported) as caught:
        pa.select(SPEC, "mps")
    assert {r.backend for r in caught.value.refusals} >= {"fast", "reference"}
    with pytest.raises(ValueError, match="by='luck'"):
        pa.select(SPEC, by="luck")


def test_every_kind_can_be_offered(plugins: Plugins) -> None:
    plugins.install(
        "many",
        "import pagedattn as pa\n"
        "@pa.hookimpl\ndef pagedattn_cases(): return [pa.Offer('more', 'math:pi')]\n"
        "@pa.hookimpl\ndef pagedattn_workloads(): return [pa.Offer('mine', 'math:pi')]\n"
        "@pa.hookimpl\ndef pagedattn_model_runners(): return [pa.Offer('own', 'math:pi')]\n",
    )
    for kind, name in (
        (OfferKind.CASES, "more"),
        (OfferKind.WORKLOAD, "mine"),
        (OfferKind.MODEL_RUNNER, "own"),
    ):
        assert name in {r.name for r in registry.rows(kind) if r.state == "ready"}


def test_options_that_an_allocator_lacks() -> None:
    with pytest.raises(pa.Unsupported, match="colour"):
        pa.allocator("paged", num_blocks=4, colour="red")


@pytest.mark.parametrize("broken", ["capabilities", "refuse"])
def test_a_backend_whose_answers_fail_is_broken_and_alone(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    code = GOOD.format(name="sick", version="(1, 0)", offer="Backend")
    plugins.install("sick", code + f"setattr(Backend, {broken!r}, lambda *a: 1/0)\n")
    explained = {e.row.name: e.refusals for e in pa.explain(SPEC)}
    (refusal,) = explained["sick"]
    assert refusal.code == "broken"
    assert "ZeroDivisionError" in refusal.requested
    assert explained["reference"] == ()
    assert pa.select(SPEC).name == "reference"
    monkeypatch.setenv("PAGEDATTN_STRICT", "1")
    with pytest.raises(pa.PluginError, match="sick"):
        pa.check("sick", SPEC)


GPU_ALONE = "Backend.capabilities = lambda s, d: pa.Capabilities(device={'cuda'})\n"


def test_a_backend_without_a_device_of_its_own_says_so(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer = "pa.Offer('gpu', lambda: Backend, priority=1000)"
    plugins.install("gpu", GOOD.format(name="gpu", version="(1, 0)", offer=offer) + GPU_ALONE)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = row("gpu")
    assert found.state == "no device"
    assert found.detail == "needs a cuda device, and none is here"
    assert [r.code for r in pa.check("gpu", SPEC, "cpu")] == ["device"]
    assert pa.check("gpu", SPEC, "sm90") == ()  # a made-up device is answered for
    assert pa.select(SPEC, "sm90").name == "gpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert row("gpu").state == "ready"


def test_a_backend_that_could_be_emulated_says_how(
    plugins: Plugins, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = GOOD.format(name="gpu", version="(1, 0)", offer="pa.Offer('gpu', lambda: Backend)")
    emulator = "@pa.hookimpl\ndef pagedattn_emulators(): return [pa.Offer('gpu', 'math:pi')]\n"
    plugins.install("gpu", code + GPU_ALONE + emulator)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert row("gpu").detail.endswith("; PAGEDATTN_EMULATE=1 judges it on the CPU")


def test_devices_that_torch_has() -> None:
    assert is_present("cpu")
    assert not is_present("no-such-device")
