"""Which programs attention has: by the dtype of its factors, and by who does the softmax."""

from collections.abc import Callable
from typing import Any

from hpctrain.autograd.narrow import is_narrow
from hpctrain.ops.dnnl_attention import Softmax, attention_grad_program, attention_program
from hpctrain.ops.dnnl_narrow_attention import (
    narrow_attention_grad_program,
    narrow_attention_program,
)
from hpctrain.ops.dnnl_scores import CompiledSoftmax, LibrarySoftmax

__all__ = ["backward_programs", "forward_programs"]


def forward_programs() -> dict[str, Any]:
    """Return what puts programs together, of oneDNN alone and with compiled passes."""
    return _programs(attention_program, narrow_attention_program)


def backward_programs() -> dict[str, Any]:
    """Return the same for the gradient."""
    return _programs(attention_grad_program, narrow_attention_grad_program)


def _programs(wide: Callable[..., Any], narrow: Callable[..., Any]) -> dict[str, Any]:
    def made(softmax: type[Softmax]) -> Callable[..., Any]:
        def make(library: Any, specs: Any, outs: Any, attrs: Any) -> Any:
            one = narrow if is_narrow(specs[0]) else wide
            return one(library, specs, outs, attrs, softmax)

        return make

    return {"make": made(LibrarySoftmax), "compiled": made(CompiledSoftmax)}
