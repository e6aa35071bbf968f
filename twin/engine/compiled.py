"""How the kernel's functions are compiled: by Numba, holding no interpreter lock. Compiles nothing by itself.

Law: the disk cache of an entry function is used only if all functions and constants it was made from are the same.
"""

from collections.abc import Callable
from hashlib import blake2b
from types import CodeType, FunctionType
from typing import Any, TypeVar

from numba import njit, types
from numba.extending import intrinsic

from twin.engine.types import Int64Array

Function = TypeVar("Function", bound=Callable[..., object])


def compiled(function: Function) -> Function:
    """The function, compiled with its first caller. It keeps its type for the type checker."""
    # Costs and block sizes are checked before: no division by zero to guard against.
    result: Function = njit(nogil=True, error_model="numpy")(function)
    return result


def cached(function: Function) -> Function:
    """As `compiled`, and kept on disk; for a function that closes over the `fingerprint` of those it calls.

    Numba looks only at the file of the function itself, and at what it closes over, to see that a cache is stale.
    """
    result: Function = njit(nogil=True, cache=True, error_model="numpy")(function)
    return result


def fingerprint(*namespaces: dict[str, Any]) -> int:
    """A number that changes when any function or integer of these modules does.

    >>> fingerprint({"A": 1}) == fingerprint({"A": 1}), fingerprint({"A": 1}) == fingerprint({"A": 2})
    (True, False)
    """
    digest = blake2b(digest_size=7)
    for namespace in namespaces:
        for name in sorted(namespace):
            value = getattr(namespace[name], "py_func", namespace[name])
            if isinstance(value, FunctionType):
                digest.update(repr((name, _spelled(value.__code__))).encode())
            elif isinstance(value, int):
                digest.update(repr((name, int(value))).encode())
    return int.from_bytes(digest.digest(), "big")


def _spelled(code: CodeType) -> tuple[object, ...]:
    constants = (_spelled(one) if isinstance(one, CodeType) else one for one in code.co_consts)
    return (code.co_code, code.co_names, *constants)


@intrinsic
def _pointer(typing_context, array):  # type: ignore[no-untyped-def]
    signature = types.CPointer(types.int64)(array)

    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return context.make_array(signature.args[0])(context, builder, arguments[0]).data

    return signature, code


@intrinsic
def _moved(typing_context, start, places):  # type: ignore[no-untyped-def]
    def code(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        return builder.gep(arguments[0], [arguments[1]])

    return start(start, types.int64), code


def _typed() -> tuple[Callable[[Int64Array], Int64Array], Callable[[Int64Array, int], Int64Array]]:
    found: tuple[Any, Any] = (_pointer, _moved)
    return found


pointer, moved = _typed()
"""Inside a compiled function: where the array's integers begin, indexed like the array, without its reference count;

and the same, so many places further. An array counts its references at every call that it is handed to, which costs
more than most of these functions do.
"""
