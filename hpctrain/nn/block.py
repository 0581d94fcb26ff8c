"""Blocks: models and parts of models, as trees of named parameters and children."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from hpctrain.autograd import pause
from hpctrain.autograd.bind import EAGER
from hpctrain.autograd.mode import interpreted_by
from hpctrain.backend import Device
from hpctrain.errors import ConfigError, ShapeError
from hpctrain.graph.marks import as_region, marked
from hpctrain.nn.files import load, save
from hpctrain.nn.hook import Hook
from hpctrain.nn.naming import Scope
from hpctrain.nn.parameter import Parameter
from hpctrain.nn.parameter_dict import ParameterDict
from hpctrain.nn.placed import Placed

__all__ = ["Block", "Hook"]


class Block(Placed):
    """A part of a model: parameters, children, and what it does with tensors.

    Parameters
    ----------
    prefix : str, optional
        Begins the names of its parameters in messages; chosen by kind and number if None.
    params : ParameterDict, optional
        Another block's ``params``, to share parameters with it.

    Notes
    -----
    Parameters and blocks become parts by being set as attributes. The structural name of a
    parameter is the path of attributes that leads to it, such as ``features.0.weight``.
    """

    _members: dict[str, "Block | Parameter"]
    _region = False  # set by `hpctrain.nn.recompute`

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make room for parts, so that attributes may be set before ``__init__`` of Block."""
        self = super().__new__(cls)
        object.__setattr__(self, "_members", {})
        return self

    def __init__(self, prefix: str | None = None, params: ParameterDict | None = None) -> None:
        self._scope = Scope(prefix, type(self).__name__.lower())
        self.params = ParameterDict(self._scope.prefix, params)
        self._ready = False  # whether the shapes of all its own parameters are known
        self._pre_hooks: dict[int, Callable[..., None]] = {}
        self._hooks: dict[int, Callable[..., None]] = {}
        self._hook_keys = itertools.count()

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Block | Parameter):
            self._members[name] = value
            self._changed()
        elif name in self._members:
            del self._members[name]
            self._changed()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self._members.pop(name, None)
        object.__delattr__(self, name)

    def __repr__(self) -> str:
        head = f"{type(self).__name__}({self._described()}"
        if not self.children:
            return head + ")"
        lines = [f"  ({k}): " + repr(c).replace("\n", "\n  ") for k, c in self.children.items()]
        return "\n".join([head, *lines, ")"])

    def _described(self) -> str:
        """Return the block's settings, for its representation."""
        return ""

    def _changed(self) -> None:
        """Take note that a part was added or taken away."""
        object.__setattr__(self, "_ready", False)

    @property
    def prefix(self) -> str:
        """What the names of its parameters begin with, in messages."""
        return self._scope.prefix

    @property
    def name(self) -> str:
        """Its name in messages."""
        return self._scope.prefix.removesuffix("_")

    @property
    def children(self) -> dict[str, "Block"]:
        """Its children by attribute, in the order in which they were set."""
        return {k: m for k, m in self._members.items() if isinstance(m, Block)}

    def name_scope(self) -> AbstractContextManager[Any]:
        """Name the blocks that are made inside the ``with`` block as its children."""
        return self._scope.entered()

    def register_child(self, block: "Block", name: str | None = None) -> None:
        """Make ``block`` a child under ``name``, the next number if None."""
        self._members[str(len(self.children)) if name is None else name] = block
        self._changed()

    def own_params(self) -> Iterator[tuple[str, Parameter]]:
        """Yield name and parameter of the block itself, without its children."""
        for name, member in self._members.items():
            if isinstance(member, Parameter):
                yield name, member
        for name, parameter in self.params.items():
            if name not in self._members:  # else another parameter has taken its place
                yield name, parameter

    def _walk(self, path: str = "") -> Iterator[tuple[str, Parameter]]:
        self._refuse_hidden_blocks()
        for name, member in self._members.items():
            if isinstance(member, Parameter):
                yield path + name, member
            else:
                yield from member._walk(f"{path}{name}.")
        for name, parameter in self.own_params():
            yield path + name, parameter

    def _refuse_hidden_blocks(self) -> None:
        known = {id(child) for child in self.children.values()}
        for name, value in vars(self).items():
            items = value.values() if isinstance(value, dict) else value
            if name.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            if any(isinstance(item, Block) and id(item) not in known for item in items):
                raise ConfigError(
                    f"{self.name}: the attribute {name!r} holds blocks in a "
                    f"{type(value).__name__}, where their parameters cannot be found; put "
                    "them in a nn.Sequential"
                )

    def collect_params(self, select: str | None = None) -> ParameterDict:
        """Return the parameters of the whole tree by structural name, in order of declaration.

        Parameters
        ----------
        select : str, optional
            Regular expression that the names must match from their start.

        Returns
        -------
        ParameterDict
            A parameter that is met twice stands there once, under its first name.
        """
        found = ParameterDict(self.prefix)
        seen: set[int] = set()
        for name, parameter in self._walk():
            if id(parameter) not in seen:
                seen.add(id(parameter))
                found.add(name, parameter)
        return found if select is None else found.select(select)

    def initialize(
        self,
        init: Any = None,
        ctx: Device | Sequence[Device] | None = None,
        seed: int = 0,
        force_reinit: bool = False,
    ) -> "Block":
        """Initialise every parameter that is not initialised yet.

        Parameters
        ----------
        init : str, Initializer or None
            For parameters without an initializer of their own; ``Xavier()`` if None.
        ctx : Device or sequence of Device, optional
            Each gets a copy; the host if None.
        seed : int
            First values depend on it, on the structural name seen from this block, and on the
            shape, on nothing else.
        force_reinit : bool
            Begin anew where there are values already.
        """
        self.collect_params().initialize(init, ctx, seed, force_reinit)
        return self

    def forward(self, *args: Any) -> Any:
        """Compute the outputs; to be overridden."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward")

    def __call__(self, *args: Any) -> Any:
        """Return `forward` of the arguments, with the hooks around it."""
        for hook in list(self._pre_hooks.values()):
            hook(self, args)
        result = self._run(*args)
        for hook in list(self._hooks.values()):
            hook(self, args, result)
        return result

    def _run(self, *args: Any) -> Any:
        if not self._ready:
            self._complete(args)
        with marked(**self._marks) if self._marks else nullcontext():
            return as_region(self.forward, *args) if self._region else self.forward(*args)

    def _complete(self, args: Sequence[Any]) -> None:
        """See that the shapes of the block's own parameters are known."""
        own = [parameter for _, parameter in self.own_params()]
        if any(not parameter.known for parameter in own):
            self.infer_shape(*args)
        self._ready = all(parameter.known for parameter in own)

    def infer_shape(self, *args: Any) -> None:
        """Tell the unknown shapes of its own parameters, from the inputs, by `complete`.

        To be overridden by blocks that leave lengths of their parameters open.
        """
        raise ShapeError(
            f"{self.name}: a parameter has unknown lengths, and the block has no infer_shape; "
            "give the whole shape or define infer_shape"
        )

    def complete_shapes(self, *args: Any) -> None:
        """Make every unknown shape known by one forward pass, if there is any.

        The pass is not recorded, is in inference mode, and captures no graph.
        """
        if all(parameter.known for parameter in self.collect_params().values()):
            return
        # hybridized children leave capturing to whoever has set an interpreter
        with pause(), interpreted_by(EAGER):
            self._run(*args)

    def apply(self, function: Callable[["Block"], None]) -> "Block":
        """Call ``function`` with every block of the tree, children first; return self."""
        for child in self.children.values():
            child.apply(function)
        function(self)
        return self

    def cast(self, dtype: Any) -> None:
        """Change the dtype of all parameters that hold floating-point numbers."""
        for parameter in self.collect_params().values():
            if parameter.dtype.kind == "f":
                parameter.cast(dtype)
        self.apply(Block._changed)

    def reset_ctx(self, ctx: Device | Sequence[Device]) -> None:
        """Move all parameters; each device of ``ctx`` gets a copy of the first one."""
        for parameter in self.collect_params().values():
            parameter.reset_ctx(ctx)
        self.apply(Block._changed)

    def save_parameters(self, path: str | Path) -> None:
        """Write all parameters to a NumPy archive; see `hpctrain.nn.files.save`."""
        save(path, self.collect_params())

    def load_parameters(
        self,
        path: str | Path,
        ctx: Device | Sequence[Device] | None = None,
        allow_missing: bool = False,
        ignore_extra: bool = False,
    ) -> None:
        """Set all parameters from a NumPy archive; see `hpctrain.nn.files.load`."""
        load(path, self.collect_params(), ctx, allow_missing, ignore_extra)

    def hybridize(self, active: bool = True, **flags: Any) -> None:
        """Hybridize the children that can be; see `HybridBlock.hybridize`."""
        for child in self.children.values():
            child.hybridize(active, **flags)

    def register_forward_hook(self, hook: Callable[..., None]) -> Hook:
        """Call ``hook(block, inputs, output)`` after each forward pass."""
        return self._register(self._hooks, hook)

    def register_forward_pre_hook(self, hook: Callable[..., None]) -> Hook:
        """Call ``hook(block, inputs)`` before each forward pass."""
        return self._register(self._pre_hooks, hook)

    def _register(self, hooks: dict[int, Callable[..., None]], hook: Any) -> Hook:
        key = next(self._hook_keys)
        hooks[key] = hook
        return Hook(hooks, key)
