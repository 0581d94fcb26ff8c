"""``import-mxnet``: turn a checkpoint of MXNet into a model that training goes on from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import tyro

from hpctrain.cli.arguments import call
from hpctrain.models import imported
from hpctrain.symbol.node import in_order
from hpctrain.train.params import load_checkpoint

__all__ = ["run"]


def run(argv: Sequence[str]) -> int:
    """Convert a checkpoint."""
    call({"run": convert}, ["run", *argv], "import-mxnet")
    return 0


def convert(
    prefix: Annotated[str, tyro.conf.Positional],
    epoch: Annotated[int, tyro.conf.Positional],
    out: str = "",
) -> None:
    """Write PREFIX-symbol.json and PREFIX-EPOCH.params of MXNet as a model of this program.

    Args:
        prefix: what the names of MXNet's files begin with.
        epoch: number of the epoch in the name of the parameters.
        out: new folder for the model; PREFIX-EPOCH if not given.
    """
    symbol, args, aux = load_checkpoint(prefix, epoch)
    model = imported.Imported(symbol, {n: p.asnumpy() for n, p in {**args, **aux}.items()})
    folder = Path(out or f"{prefix}-{epoch:04d}")
    imported.store(folder, symbol, {**args, **aux})
    known = {*args, *aux}
    plain = [n.name for n in in_order(model.symbol.heads) if n.operator is None]
    inputs = [name for name in plain if name not in known]
    count = sum(p.size for p in args.values())
    print(f"{folder}: {len(args)} parameters of {count:,} numbers, {len(aux)} of state")
    print(f"  inputs    {', '.join(inputs)}")
    print(f"  outputs   {', '.join(model.symbol.list_outputs())}")
    loss = imported.loss_of(symbol)
    flag = f" --loss.name {loss}" if loss else ""
    print(f"  go on     python -m hpctrain train run.toml --model.name symbol:{folder}{flag}")
