"""The distribution: every folder is shipped, imports are light, dependencies point one way."""

import ast
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = {".py", ".cu", ".cuh", ".h", ".cpp"}
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]


def shipped_modules() -> dict[str, Path]:
    found = {}
    for package, folder in CONFIG["package-dir"].items():
        for path in (ROOT / folder).rglob("*.py"):
            inner = path.relative_to(ROOT / folder).with_suffix("")
            found[".".join((package, *inner.parts)).removesuffix(".__init__")] = path
    return found


def shipped_files() -> dict[str, Path]:
    """Sources in any language by their place in the wheel."""
    found = {}
    for package, folder in CONFIG["package-dir"].items():
        for path in (ROOT / folder).rglob("*"):
            if path.suffix in SOURCES:
                inner = path.relative_to(ROOT / folder)
                found[f"{package.replace('.', '/')}/{inner}"] = path
    return found


def test_every_folder_is_listed() -> None:
    found = {name.rpartition("/")[0].replace("/", ".") for name in shipped_files()}
    assert found == set(CONFIG["packages"])


@pytest.mark.slow
def test_the_wheel_holds_every_module(tmp_path: Path) -> None:
    copy = tmp_path / "source"
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split("\0")
    for name in filter(None, tracked):  # a fresh tree: a stale build/ would ship deleted modules
        source = ROOT / name
        if source.is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(source.read_bytes())
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--outdir", str(tmp_path), str(copy)],
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert set(shipped_files()) <= names
    assert "pagedattn/py.typed" in names


@pytest.mark.parametrize("module", ["pagedattn", "pagedattn.registry", "pagedattn.cli"])
def test_importing_is_light(module: str) -> None:
    code = f"import {module}, sys; print([m for m in HEAVY if m in sys.modules])"
    heavy = "HEAVY = ['torch', 'numpy', 'triton', 'cupy', 'flash_attn', 'transformers']; "
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_listing_backends_imports_no_kernel_library() -> None:
    code = (
        "import pagedattn as pa, sys; assert len(pa.backends()) > 3; print(*HEAVY & {*sys.modules})"
    )
    heavy = "HEAVY = {'triton', 'cupy', 'flash_attn', 'transformers'}; "
    done = subprocess.run(
        [sys.executable, "-c", heavy + code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == ""


def test_the_pytest_plugin_is_light(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import sys\n"
        "def test_it():\n"
        "    assert not [m for m in ('torch', 'numpy', 'triton', 'cupy') if m in sys.modules]\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", str(test)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
    return found


def test_dependencies_point_one_way() -> None:
    parts = ("pagedattn.backends", "pagedattn.conformance", "pagedattn.benchmarks")
    for module, path in shipped_modules().items():
        own = next((part for part in parts if module.startswith(part)), "pagedattn")
        allowed = own if own != "pagedattn" else ()
        for name in imports_of(path):
            if name.startswith(parts):
                assert allowed, f"core module {module} imports {name}"
                assert name.startswith(allowed) or own == "pagedattn.conformance", (
                    f"{module} imports {name}"
                )


def test_backends_do_not_import_each_other() -> None:
    for module, path in shipped_modules().items():
        folder = module.split(".")[2] if module.startswith("pagedattn.backends.") else None
        if folder == "builtin":  # it lists them, one entry a backend or family
            continue
        for name in imports_of(path):
            if folder and name.startswith("pagedattn.backends."):
                assert name.split(".")[2] == folder, f"{module} imports {name}"


def test_public_names_are_lazy_and_all_there() -> None:
    import pagedattn

    for name in pagedattn.__all__:
        assert getattr(pagedattn, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = pagedattn.nonsense  # type: ignore[attr-defined]


def test_type_checkers_see_the_names_that_exist() -> None:
    import pagedattn

    tree = ast.parse((ROOT / "core/__init__.py").read_text())
    declared = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert declared == set(pagedattn.__all__) - {"__version__"}


def test_functions_that_share_a_modules_name_stay_callable() -> None:
    import pagedattn as pa
    import pagedattn.allocator
    import pagedattn.backends.builtin

    assert "reference" in {row.name for row in pa.backends()}
    assert pa.allocator("paged", num_blocks=4, block_size=2).num_blocks == 4
