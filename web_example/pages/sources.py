"""The very lines that a page is about, taken from the module that holds them, for the reader who wants to know how it is done."""

import ast
import inspect
from functools import cache
from textwrap import dedent
from types import ModuleType


@cache
def lines_of(module: ModuleType, *names: str) -> str:
    """The source of these classes and functions ("ReleaseRoom", "Rooms.book"), in this order, an empty line between them."""
    source = inspect.getsource(module)
    return "\n\n".join(dedent("\n".join(_cut(source, name))) for name in names)


def _cut(source: str, name: str) -> list[str]:
    found: ast.AST = ast.parse(source)
    for part in name.split("."):
        found = next(
            node
            for node in ast.iter_child_nodes(found)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name == part
        )
    assert isinstance(found, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
    first = min([found.lineno, *(decorator.lineno for decorator in found.decorator_list)])
    return source.splitlines()[first - 1 : found.end_lineno]
