"""Columns of a row that has two kernels: oneDNN's where it fits, else the one for any array.

Which one is a function of shapes, dtypes and attributes, so that eager execution and plans
take the same, and of nothing that may change between planning and running.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hpctrain import backend
from hpctrain.autograd import Spec
from hpctrain.autograd.narrow import NARROW, is_narrow, narrowed, wide
from hpctrain.ops.cells import Loop
from hpctrain.ops.dnnl import DTYPES, library
from hpctrain.ops.dnnl_program import Builder, Program

__all__ = ["Products", "TwoKernels"]

Make = Callable[..., Builder]
_BYTES = np.dtype(np.uint8)


class TwoKernels:
    """The columns ``kernel``, ``scratch``, ``bind`` and ``dense`` of a row.

    Parameters
    ----------
    infer : callable
        The row's shape rule.
    make : callable ``(library, specs, outs, attrs) -> Builder``
        Puts the program together; raises `NotImplementedError` where oneDNN has none.
    kernel, scratch : callable
        The reference, for any array module, dtype and strides.
    guard : callable ``(ins) -> bool``, optional
        Whether the program gives the reference's results for these elements; where it does
        not, the reference runs, on scratch that it is not planned for: a rare case.
    ready : callable ``(xp, ins, outs, scratch, **attrs) -> callable``, optional
        The reference bound to arrays of NumPy, where that saves something in each call.
    compiled : callable like ``make``, optional
        Puts together the program with passes, which plans take on one thread where they can
        be compiled; results within rounding.
    """

    factors = 0  # how many inputs may be bfloat16

    def __init__(  # noqa: PLR0913 (columns)
        self,
        infer: Callable[..., Sequence[Spec]],
        make: Make,
        kernel: Callable[..., None],
        scratch: Callable[..., Sequence[Spec]],
        guard: Callable[[Any], bool] | None = None,
        ready: Callable[..., Callable[[], None]] | None = None,
        compiled: Make | None = None,
    ) -> None:
        self._infer, self._makers = infer, (make, compiled)
        self._guard, self._ready = guard, ready
        self._kernel, self._scratch = kernel, scratch
        self._programs = functools.lru_cache(maxsize=1024)(self._program)

    def program(
        self, specs: Sequence[Spec], attrs: dict[str, Any], loops: bool = False
    ) -> Program | None:
        """Return the program for arrays of such specs on the host, or None.

        With ``loops`` the one that has passes, None if it is not to be taken.
        """
        found = library()
        if found is None or not _fits(specs, self.factors):
            return None
        threads, make = found.threads(), self._makers[loops]
        if make is None or (loops and threads > 1):
            return None
        return self._programs(make, threads, tuple(specs), tuple(attrs.items()))

    def _program(
        self, make: Make, threads: int, specs: tuple[Spec, ...], items: Any
    ) -> Program | None:
        found, attrs = library(), dict(items)
        assert found is not None, "asked only where it is there"
        outs = self._infer(specs, **attrs)
        if not _fits(outs):
            return None
        found.use_threads(threads)
        try:
            return make(found, specs, outs, attrs).program(threads)
        except NotImplementedError:
            return None

    @property
    def columns(self) -> dict[str, Any]:
        """What a row takes beside its kernel."""
        loops = self._makers[1] is not None
        found = {"scratch": self.scratch, "bind": self.bind, "dense": self.dense}
        return {**found, "loops": True} if loops else found

    def scratch(
        self, specs: Sequence[Spec], loop: Loop | None = None, **attrs: Any
    ) -> Sequence[Spec]:
        """Return what either needs; a plan for a GPU is made by the same call.

        With ``loop`` what a program with passes needs, too.
        """
        program = self.program(specs, attrs)
        if program is None:
            return self._scratch(specs, **attrs)
        other = (loop and self.program(specs, attrs, loops=True)) or program
        mine = Spec((max(program.nbytes, other.nbytes),), _BYTES)
        return [mine, *self._scratch(specs, **attrs)] if _gpus() else [mine]

    def dense(self, specs: Sequence[Spec], **attrs: Any) -> bool:
        """Return whether inputs must be C-contiguous, so that others are copied first."""
        return self.program(specs, attrs) is not None

    def kernel(self, xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
        """Compute."""
        program = self.program([Spec.of(a) for a in ins], attrs)
        if program is None:
            self._kernel(xp, ins, outs, scratch, **attrs)
        elif xp is not np:
            self._kernel(xp, ins, outs, scratch[1:], **attrs)
        else:
            plain = [a if _plain(a) else np.array(a, order="C") for a in ins]
            run = functools.partial(program.run, [*plain, *outs], scratch[0])
            self._run(run, plain, outs, attrs)

    def _run(self, run: Callable[[], None], ins: Any, outs: Any, attrs: Any) -> None:
        if self._guard is None or self._guard(ins):
            run()
            return
        wanted = self._scratch([Spec.of(a) for a in ins], **attrs)
        self._kernel(np, ins, outs, [np.empty(s.shape, s.dtype) for s in wanted], **attrs)

    def bind(
        self, xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None, **attrs: Any
    ) -> Callable[[], None] | None:
        """Return the program with its addresses filled in; ``loop`` compiles passes."""
        specs = [Spec.of(a) for a in ins]
        program = self.program(specs, attrs)
        if xp is not np:
            return None
        if program is None:
            if self._ready is None:
                return functools.partial(self._kernel, xp, ins, outs, scratch, **attrs)
            return self._ready(xp, ins, outs, scratch, **attrs)
        if loop is not None:
            program = self.program(specs, attrs, loops=True) or program
        plain = [a if _plain(a) else np.empty(a.shape, a.dtype) for a in ins]
        run = program.ready([*plain, *outs], scratch[0], loop)
        if self._guard is not None:
            run = functools.partial(self._run, run, plain, outs, attrs)
        copies = [(p, a) for p, a in zip(plain, ins, strict=True) if p is not a]
        return functools.partial(_copied, copies, run) if copies else run


class Products(TwoKernels):
    """The columns of a row whose first inputs, two at first, may be bfloat16."""

    def __init__(self, *given: Any, factors: int = 2, **named: Any) -> None:
        super().__init__(*given, **named)
        self.factors = factors
        self._kernel, self._scratch = _widened(self._kernel), _widened_scratch(self._scratch)

    @property
    def columns(self) -> dict[str, Any]:
        """What a row takes beside its kernel."""
        return {**super().columns, "narrow": self.narrow}

    def narrow(self, specs: Sequence[Spec], **attrs: Any) -> Sequence[int]:
        """Return the factors if oneDNN has a kernel for them in bfloat16."""
        rounded = [narrowed(s) for s in specs[: self.factors]]
        known = [s for s in rounded if s is not None]
        if len(known) < self.factors:
            return ()
        found = self.program([*known, *specs[self.factors :]], attrs)
        return () if found is None else range(self.factors)

    def bind(
        self, xp: Any, ins: Any, outs: Any, scratch: Any, loop: Loop | None = None, **attrs: Any
    ) -> Callable[[], None] | None:
        """Return the program with its addresses filled in."""
        specs = [Spec.of(a) for a in ins]
        if any(map(is_narrow, specs)) and self.program(specs, attrs) is None:
            return None  # the reference widens its factors in each call
        return super().bind(xp, ins, outs, scratch, loop, **attrs)


def _widened_scratch(scratch: Callable[..., Sequence[Spec]]) -> Callable[..., list[Spec]]:
    """Return the column ``scratch`` of a kernel that is widened."""

    def wanted(specs: Sequence[Spec], **attrs: Any) -> list[Spec]:
        factors = [wide(s) for s in specs if is_narrow(s)]
        return [*factors, *scratch([wide(s) for s in specs], **attrs)]

    return wanted


def _widened(kernel: Callable[..., None]) -> Callable[..., None]:
    """Return ``kernel`` for factors in bfloat16 too; to widen them is exact."""

    def run(xp: Any, ins: Any, outs: Any, scratch: Any, **attrs: Any) -> None:
        which = [i for i, a in enumerate(ins) if is_narrow(a)]
        if which:
            ins = list(ins)
            for i, room in zip(which, scratch[: len(which)], strict=True):
                xp.copyto(room, ins[i])
                ins[i] = room
        kernel(xp, ins, outs, scratch[len(which) :], **attrs)

    return run


def _copied(copies: Sequence[tuple[Any, Any]], run: Callable[[], None]) -> None:
    for target, source in copies:
        np.copyto(target, source)
    run()


def _plain(array: Any) -> bool:
    """Return whether the address of ``array`` says where its elements are."""
    return bool(array.flags.c_contiguous and array.flags.aligned)


def _fits(specs: Sequence[Spec], factors: int = 0) -> bool:
    """Return whether oneDNN may be asked for kernels of such arrays.

    The first ``factors`` arrays may be bfloat16, all of them, if the CPU can multiply that.
    """
    names = [s.dtype.name for s in specs]
    narrow = names[:factors].count(NARROW)
    if narrow:
        found = library()
        known = narrow == factors and found is not None and found.narrow
    else:
        known = names[0] == "float32"
    return (
        known
        and NARROW not in names[factors:]
        and all(n in DTYPES and s.size > 0 for n, s in zip(names, specs, strict=True))
    )


@functools.cache
def _gpus() -> bool:
    return backend.gpu_count() > 0
