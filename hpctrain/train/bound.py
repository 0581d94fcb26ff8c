"""What a module computes with: executors on devices of this rank, or a share over ranks."""

from collections.abc import Mapping, Sequence

from hpctrain.backend import Device
from hpctrain.errors import ConfigError
from hpctrain.io import DataDesc
from hpctrain.symbol import Symbol
from hpctrain.train.executors import Executors
from hpctrain.train.placed import PlacedExecutors
from hpctrain.train.places import Places

__all__ = ["Bound", "bound_to"]

Bound = Executors | PlacedExecutors
Described = tuple[Sequence[DataDesc], Sequence[DataDesc], Mapping[str, str], int]


def bound_to(
    symbol: Symbol,
    devices: Sequence[Device],
    described: Described,
    places: Places | None,
    shared: Bound | None = None,
) -> Bound:
    """Bind a symbol to new arrays.

    Parameters
    ----------
    symbol : Symbol
    devices : sequence of Device
    described : (data, label, requests, seed)
        See `Executors`.
    places : Places, optional
        Where the groups are, if they are on several ranks; then collective.
    shared : Executors or PlacedExecutors, optional
        Whose arrays are used.
    """
    if places is None:
        assert not isinstance(shared, PlacedExecutors), "a module without group2ctx"
        return Executors(symbol, devices, *described, shared)
    if len(devices) > 1:
        raise ConfigError(
            f"bind: got {len(devices)} devices with group2ctx over ranks, needed one; for "
            "copies of the model give each group several ranks"
        )
    assert not isinstance(shared, Executors), "a module with group2ctx"
    where = places if shared is None else shared.places
    return PlacedExecutors(symbol, where, devices[0], *described, shared)
