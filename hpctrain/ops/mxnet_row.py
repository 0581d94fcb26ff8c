"""One operator by MXNet's name, and its attributes as they stand in a symbol file: as text.

Files come from others, so text is matched against a few plain forms and never evaluated.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from hpctrain.errors import ConfigError

__all__ = [
    "AXES", "BOOL", "BOUNDS", "DTYPE", "FLOAT", "IGNORED", "INT", "MAYBE_BOOL", "MAYBE_FLOAT",
    "MAYBE_INT", "SHAPE", "TEXT", "Attr", "Attrs", "Operator", "Shape", "Shapes", "alike",
    "first_shape", "no_bias", "parse_attrs", "text_of",
]  # fmt: skip

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]
Attrs = Mapping[str, Any]
_DTYPES = frozenset(
    {"float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool", "None"}
)
_INTEGER = re.compile(r"[+-]?\d{1,19}L?")
_SHAPE = re.compile(r"[(\[]\s*((?:(?:[+-]?\d{1,19}L?|None)\s*,?\s*)*)[)\]]")

# Hints to MXNet's own kernels, which mean nothing here.
IGNORED = frozenset(
    {
        "workspace", "cudnn_tune", "cudnn_off", "min_calib_range", "max_calib_range",
        "sparse_grad", "forward_stype", "ctx", "target_ctx", "num_parallel", "deterministic",
    }
)  # fmt: skip


def _bool(text: str) -> bool:
    values = {"True": True, "true": True, "1": True, "False": False, "false": False, "0": False}
    return values[text]


def _int(text: str) -> int:
    if not _INTEGER.fullmatch(text):
        raise ValueError(text)
    return int(text.rstrip("L"))


def _shape(text: str) -> Shape:
    """Read ``(3, 3)``, ``[3,3]``, ``(3L, 3L)`` or ``3``."""
    if _INTEGER.fullmatch(text):
        return (_int(text),)
    match = _SHAPE.fullmatch(text)
    if match is None or "None" in text:
        raise ValueError(text)
    return tuple(_int(part) for part in re.findall(r"[^\s,]+", match[1]))


def _bounds(text: str) -> tuple[int | None, ...]:
    """Read a shape some of whose numbers may be ``None``."""
    if _INTEGER.fullmatch(text):
        return (_int(text),)
    match = _SHAPE.fullmatch(text)
    if match is None:
        raise ValueError(text)
    parts = re.findall(r"[^\s,]+", match[1])
    return tuple(None if part == "None" else _int(part) for part in parts)


def _dtype(text: str) -> str:
    """Read a name of numbers that arrays may have."""
    if text not in _DTYPES:
        raise ValueError(text)
    return text


def _maybe(read: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: None if text == "None" else read(text)


@dataclass(frozen=True, slots=True)
class Attr:
    """How the text of an attribute is read, and its value where it is left out."""

    read: Callable[[str], Any]
    what: str
    default: Any = None
    required: bool = True

    def or_else(self, default: Any) -> "Attr":
        """Return the same kind of attribute, which may be left out."""
        return Attr(self.read, self.what, default, False)


DTYPE = Attr(_dtype, "a dtype such as float32")
BOOL = Attr(_bool, "True or False")
INT = Attr(_int, "a whole number")
FLOAT = Attr(float, "a number")
TEXT = Attr(str, "text")
SHAPE = Attr(_shape, "whole numbers as in (3, 3)")
BOUNDS = Attr(_bounds, "whole numbers or None as in (0, None)")
MAYBE_INT = Attr(_maybe(_int), "a whole number or None", None, False)
MAYBE_FLOAT = Attr(_maybe(float), "a number or None", None, False)
MAYBE_BOOL = Attr(_maybe(_bool), "True, False or None", None, False)
AXES = Attr(_maybe(_shape), "axes as in (0, 1), or None", None, False)


def _no_names(attrs: Attrs) -> Sequence[str]:
    return ()


def _one(attrs: Attrs) -> int:
    return 1


@dataclass(frozen=True, slots=True)
class Operator:
    """A row of the table of MXNet's operators.

    Attributes
    ----------
    name : str
        As in symbol files.
    function : callable ``(*inputs, *aux, **attrs) -> tensor or tuple of tensors``
    inputs : tuple of str
        Names of the inputs, in order; a symbol that is not given one makes a variable of
        that name. Empty for an operator of any number of inputs.
    attrs : mapping of str to Attr
    aux : tuple of str
        Names of state that a training pass changes; after the inputs.
    omit : callable ``attrs -> names``
        Inputs that are not there with these attributes.
    shapes : callable ``(attrs, shapes) -> shapes``, optional
        Fills in the shapes of inputs (without aux) that are None, from those that are known.
    aux_shapes : callable ``(attrs, shapes) -> shapes``, optional
    any_shape : bool
        ``shapes`` needs one known shape, whichever; otherwise it needs the first.
    outputs : callable ``attrs -> int``
    count : str
        Attribute that holds the number of inputs where that is free.
    random : bool
        The function takes a stream of random numbers, ``stream``, as well.
    source : bool
        The function takes no inputs, and a tensor on the device where its own is wanted,
        ``like``, as well. Lengths of 0 in ``shape`` are those of the batch.
    results : tuple of str
        Names of the outputs, where MXNet has any.
    inits : mapping of str to str
        How inputs begin that are not given, by their names, as it stands in a symbol file.
    """

    name: str
    function: Callable[..., Any]
    inputs: tuple[str, ...] = ("data",)
    attrs: Mapping[str, Attr] = field(default_factory=lambda: MappingProxyType({}))
    aux: tuple[str, ...] = ()
    omit: Callable[[Attrs], Sequence[str]] = _no_names
    shapes: Callable[[Attrs, Shapes], Shapes] | None = None
    aux_shapes: Callable[[Attrs, Shapes], Shapes] | None = None
    outputs: Callable[[Attrs], int] = _one
    any_shape: bool = False
    count: str = ""
    random: bool = False
    source: bool = False
    results: tuple[str, ...] = ()
    inits: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def input_names(self, attrs: Attrs) -> list[str]:
        """Return the names of the inputs with these attributes, without aux."""
        if self.count:
            return [f"arg{i}" for i in range(attrs[self.count])]
        absent = self.omit(attrs)
        return [name for name in self.inputs if name not in absent]


def first_shape(shapes: Shapes) -> Shape:
    """Return the shape of the first input, which is known whenever shapes are completed."""
    assert shapes[0] is not None
    return shapes[0]


def alike(attrs: Attrs, shapes: Shapes) -> Shapes:
    """Give inputs whose shape is not known that of the first one that is."""
    known = next(shape for shape in shapes if shape is not None)
    return [known if shape is None else shape for shape in shapes]


def no_bias(attrs: Attrs) -> Sequence[str]:
    """Leave ``bias`` out where the attribute says so."""
    return ("bias",) if attrs["no_bias"] else ()


def text_of(value: Any) -> str:
    """Write an attribute as MXNet does: ``True``, ``64``, ``(3, 3)``."""
    if isinstance(value, list | tuple):
        items = [text_of(item) for item in value]
        return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
    return str(value)


def parse_attrs(where: str, operator: Operator, texts: Mapping[str, str]) -> dict[str, Any]:
    """Read the attributes of a node.

    Parameters
    ----------
    where : str
        Name of the node, for messages.
    operator : Operator
    texts : mapping of str to str
        Names with two underscores in front belong to users, and are passed over.

    Raises
    ------
    ConfigError
        If one is unknown, missing, or not of its form.
    """
    values = {n: a.default for n, a in operator.attrs.items() if not a.required}
    for name, text in texts.items():
        if name in IGNORED or (name.startswith("__") and name.endswith("__")):
            continue
        if name not in operator.attrs:
            raise ConfigError(
                f"{where}: got the attribute {name!r} for the operator {operator.name}, needed "
                f"one of {', '.join(operator.attrs) or 'none'}"
            )
        try:
            values[name] = operator.attrs[name].read(text.strip())
        except (ValueError, KeyError):
            raise ConfigError(
                f"{where}: got {name} = {text[:80]!r} for the operator {operator.name}, needed "
                f"{operator.attrs[name].what}"
            ) from None
    missing = [name for name in operator.attrs if name not in values]
    if missing:
        raise ConfigError(
            f"{where}: the operator {operator.name} needs the attribute {missing[0]!r}"
        )
    return values
