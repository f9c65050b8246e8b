"""The arithmetic of ``rewards.total``: one expression over node outputs, evaluated on whole batches."""

from __future__ import annotations

import ast
import functools
import operator
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import simpleeval

from rewards.catalogue import suggest
from rl.errors import ConfigError

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "exp": lambda x: np.exp(x),
    "log": lambda x: np.log(x),
    "sqrt": lambda x: np.sqrt(x),
    "abs": lambda x: np.abs(x),
    "min": lambda first, *rest: functools.reduce(np.minimum, rest, first),
    "max": lambda first, *rest: functools.reduce(np.maximum, rest, first),
    "clip": lambda x, low, high: np.clip(x, low, high),
    "where": lambda condition, yes, no: np.where(condition, yes, no),
}
"""What an expression may call."""


def _as_number(compare: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Comparisons give 1.0 and 0.0, so that they can be multiplied and subtracted."""
    return lambda left, right: np.asarray(compare(left, right), np.float64)


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Lt: _as_number(operator.lt),
    ast.LtE: _as_number(operator.le),
    ast.Gt: _as_number(operator.gt),
    ast.GtE: _as_number(operator.ge),
    ast.Eq: _as_number(operator.eq),
    ast.NotEq: _as_number(operator.ne),
}
_NODES = (
    ast.Expression,
    ast.BinOp,
    ast.UnaryOp,
    ast.Compare,
    ast.Call,
    ast.Name,
    ast.Constant,
    ast.expr_context,
)


@dataclass(frozen=True)
class Expression:
    """A checked expression. ``names`` are the outputs it uses, in order of appearance, without repeats."""

    text: str
    names: tuple[str, ...]
    tree: ast.expr

    def evaluate(self, values: Mapping[str, np.ndarray]) -> np.ndarray:
        """float64 ``[B]`` from float64 ``[B]`` values; NaN wherever any used value is NaN.

        That holds for comparisons, ``min`` and ``where`` too, which alone would hide a missing value.
        Elsewhere the result may be infinite or NaN (``log(0)``, ``1/0``).
        """
        used = {name: np.asarray(values[name], np.float64) for name in self.names}
        result = _value(self.tree, used)
        missing = np.any([np.isnan(value) for value in used.values()], axis=0)
        return np.where(missing, np.nan, result)


def parse_expression(text: str, resolve: Callable[[str], str], key: str) -> Expression:
    """Check ``text``. Raises `ConfigError`, naming ``key``, for what isn't arithmetic over outputs.

    ``resolve`` turns a name as written (``quality``, ``asr.confidence``) into an output's full name, or
    raises `ConfigError`.
    """
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(
            f"{key}: must be an expression over node outputs, such as 0.5*asr.confidence + 0.5*quality"
        )
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{key}: {text!r} is no arithmetic expression ({error.args[0]})") from error
    names: list[str] = []
    tree = _Resolver(resolve, names, key).visit(tree)
    if not names:
        raise ConfigError(
            f"{key}: {text!r} uses no node output, so every clip would score the same; name at least one"
        )
    expression = Expression(text, tuple(dict.fromkeys(names)), tree)
    try:
        _check_constants(tree, key)
        expression.evaluate({name: np.ones(2) for name in expression.names})
    except (TypeError, simpleeval.InvalidExpression) as error:
        problem = str(error).replace("<lambda>()", "a function")
        raise ConfigError(f"{key}: {text!r} can't be evaluated ({problem})") from error
    return expression


def _value(tree: ast.expr, values: Mapping[str, np.ndarray]) -> Any:
    evaluator = simpleeval.SimpleEval(operators=_OPERATORS, functions=FUNCTIONS, names=values)
    evaluator.nodes[ast.Constant] = lambda node: np.float64(node.value)
    with np.errstate(all="ignore"):
        return evaluator.eval("", previously_parsed=tree)


def _check_constants(tree: ast.expr, key: str) -> None:
    """Refuse what has the same infinite or undefined value for every clip, such as 1e999, log(0) or x/0."""
    for part in ast.walk(tree):
        if isinstance(part, ast.expr) and _is_constant(part) and not np.isfinite(_value(part, {})):
            raise ConfigError(f"{key}: {ast.unparse(part)!r} isn't a finite number; use another constant")
        if (
            isinstance(part, ast.BinOp)
            and isinstance(part.op, ast.Div)
            and _is_constant(part.right)
            and _value(part.right, {}) == 0
        ):
            raise ConfigError(f"{key}: {ast.unparse(part)!r} divides by zero")


def _is_constant(tree: ast.expr) -> bool:
    """Whether no output is read in it, and it isn't the name of a function."""
    called = {id(part.func) for part in ast.walk(tree) if isinstance(part, ast.Call)}
    return not any(isinstance(part, ast.Name) and id(part) not in called for part in ast.walk(tree))


class _Resolver(ast.NodeTransformer):
    """Replace each output's name by its full name, as one `ast.Name`; refuse all but arithmetic."""

    def __init__(self, resolve: Callable[[str], str], names: list[str], key: str) -> None:
        self.resolve, self.names, self.key = resolve, names, key

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if not isinstance(node, (*_NODES, *_OPERATORS)):
            source = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
            raise ConfigError(
                f"{self.key}: {source!r} isn't allowed; use + - * / **, single comparisons and "
                f"{', '.join(FUNCTIONS)}"
            )
        return super().generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        return self._output(node.id, node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not isinstance(node.value, ast.Name):
            return self.generic_visit(node)
        return self._output(f"{node.value.id}.{node.attr}", node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if called not in FUNCTIONS:
            raise ConfigError(f"{self.key}: there is no function {called}; {suggest(called, FUNCTIONS)}")
        if node.keywords:
            raise ConfigError(f"{self.key}: {called} takes its arguments in order, without names")
        node.args = [self.visit(argument) for argument in node.args]
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if isinstance(node.value, bool) or not isinstance(node.value, int | float):
            raise ConfigError(f"{self.key}: {node.value!r} is no number; outputs are written without quotes")
        if not abs(node.value) <= sys.float_info.max:
            raise ConfigError(f"{self.key}: {ast.unparse(node)[:20]!r} is too large for a number")
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if len(node.ops) > 1:
            raise ConfigError(f"{self.key}: write {ast.unparse(node)!r} as a product of two comparisons")
        return self.generic_visit(node)

    def _output(self, name: str, node: ast.AST) -> ast.AST:
        full = self.resolve(name)
        self.names.append(full)
        return ast.copy_location(ast.Name(full, ast.Load()), node)
