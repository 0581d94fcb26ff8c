"""What ``hybrid_forward`` gets as ``F``: the operations, and control flow as ``F.contrib``."""

from types import SimpleNamespace

from hpctrain import control, ops

__all__ = ["F"]

F = SimpleNamespace(**{name: getattr(ops, name) for name in ops.__all__}, contrib=control)
