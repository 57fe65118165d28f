"""Imports go one way: which package of onnx_ops may know which, and that what tests compare with knows none."""

from __future__ import annotations

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "onnx_ops"

# A package imports from itself and from these.
MAY_IMPORT: dict[str, set[str]] = {
    "core": set(),
    "loops": {"core"},
    "graph": {"core"},
    "bodies": {"core", "graph"},
    "ops": {"core", "loops", "graph", "bodies"},
    "linking": {"core", "graph", "bodies", "ops"},
    "runtime": {"core", "loops"},
    "integrations": {"core", "graph", "ops", "linking", "runtime"},
    "arrays": {"core", "graph", "ops", "linking", "integrations", "training"},
    "library": {"core", "loops", "ops", "runtime", "integrations"},
    "training": {"core", "loops", "graph", "ops", "linking", "runtime", "integrations"},
    "ascend": {"core", "ops", "arrays"},
    "fitting": {"core", "graph", "training"},
    "torch": {"core", "graph", "ops", "linking", "runtime", "integrations", "training"},
    "cli": {
        "core",
        "graph",
        "ops",
        "linking",
        "runtime",
        "integrations",
        "training",
        "arrays",
        "ascend",
        "fitting",
        "torch",
        "library",
    },
}

# The files and folders of onnx_ops/torch: each imports from itself and from those before it.
TORCH = (
    "base",
    "operators",
    "tracing",
    "rewriting",
    "lowering",
    "optimizers",
    "steps",
    "verification",
    "garbage",
    "progress",
    "exchange",
    "forward",
    "capture",
    "importing",
    "migration",
)

# What is imported inside functions, by the folder that does: Numba takes a second to load, and what makes sessions may
# be used without it; the reference evaluator takes half a one; of the command line every command loads its own; what
# watches a process of MPI must not be one; formats of data need packages that not everyone has.
LATE: dict[str, set[str]] = {
    "integrations": {"onnx_ops.runtime", "onnx.reference"},
    "fitting": {"datasets", "pyarrow", "rich", "tensorboard"},
    "cli": {"onnx_ops", "onnx", "rich", "matplotlib"},
    "": {"onnx_ops.cli", "mpi4py"},
}

FILES = sorted(PACKAGE.rglob("*.py"))


def folder_of(path: Path) -> str:
    """The package of onnx_ops that a file is in; empty for those at the top."""
    first, *rest = path.relative_to(PACKAGE).parts
    return first if rest else ""


def names_of(node: ast.Import | ast.ImportFrom) -> list[str]:
    """What a statement imports: for `from a import b`, a.b, which may be a module or something in one."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    assert node.level == 0, "imports are absolute"
    return [f"{node.module}.{alias.name}" for alias in node.names]


def imports(tree: ast.AST, *, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """All that is imported, and whether inside a function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from ((name, inside) for name in names_of(node))
        yield from imports(node, inside=inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda))


@functools.cache
def imports_of(path: Path) -> list[tuple[str, bool]]:
    return list(imports(ast.parse(path.read_text(encoding="utf-8"))))


def is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def test_every_package_is_in_the_table() -> None:
    assert {folder_of(path) for path in FILES} - {""} == set(MAY_IMPORT)
    tuple(graphlib.TopologicalSorter(MAY_IMPORT).static_order())  # no two of them know each other


def may_import(own: str, name: str) -> bool:
    """Whether modules of a package may import something of onnx_ops."""
    return f"{name}.".split(".")[1] in {own, *MAY_IMPORT[own]} or (own == "cli" and name == "onnx_ops")


def test_imports_go_one_way() -> None:
    """What stands at the top of the package is the public API; it may import all, and only the command line uses it."""
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in FILES
        for name, _ in imports_of(path)
        if folder_of(path) and is_in(name, "onnx_ops") and not may_import(folder_of(path), name)
    ]
    assert not wrong


def test_every_part_of_torch_is_in_the_order() -> None:
    found = {
        path.stem for path in (PACKAGE / "torch").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__"} == set(TORCH)


def test_parts_of_torch_import_those_before_them() -> None:
    wrong = []
    for i, part in enumerate(TORCH):
        path = PACKAGE / "torch" / part
        for file in path.rglob("*.py") if path.is_dir() else [path.with_suffix(".py")]:
            names = [name for name, _ in imports_of(file) if is_in(name, "onnx_ops.torch")]
            wrong += [f"{part} imports {name}" for name in names if name.split(".")[2] not in TORCH[: i + 1]]
    assert not wrong


def test_imports_stand_at_the_top() -> None:
    late = [
        f"{path.relative_to(PACKAGE)} imports {name} in a function"
        for path in FILES
        for name, inside in imports_of(path)
        if inside and not any(is_in(name, package) for package in LATE.get(folder_of(path), set()))
    ]
    assert not late


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Nor do two modules of one package import each other."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}
    graph = {
        module: {
            max((known for known in modules if is_in(name, known)), key=len)
            for name, inside in imports_of(path)
            if is_in(name, "onnx_ops") and not inside
        }
        - {module}
        for module, path in modules.items()
    }
    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_what_results_are_compared_with_knows_nothing_of_the_package() -> None:
    """The records of the ops, and their oracles with them, are written from the definitions alone."""
    for path in (ROOT / "tests" / "ops").rglob("*.py"):
        assert not [name for name, _ in imports_of(path) if is_in(name, "onnx_ops") or is_in(name, "models")], path.name
