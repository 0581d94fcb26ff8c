"""`BucketingModule`: a family of symbols, one for each length, with the same parameters."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.backend import CPU, Device
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch
from hpctrain.parallel.kvstore import KVStore
from hpctrain.parallel.updater import Updater
from hpctrain.symbol import Symbol
from hpctrain.train.loops import Loops
from hpctrain.train.module import Module, load_params, save_checkpoint
from hpctrain.train.params import Params, load_checkpoint

__all__ = ["BucketingModule", "Module", "load_checkpoint", "load_params", "save_checkpoint"]

Generate = Callable[[Any], tuple[Symbol, Sequence[str], Sequence[str] | None]]


class BucketingModule(Loops):
    """Trains on batches of several lengths, each with a symbol of its own.

    Parameters
    ----------
    sym_gen : callable ``(bucket_key) -> (symbol, data_names, label_names)``
    default_bucket_key : hashable
        Of the longest sequences. Its symbol has all parameters; others may lack some, which
        then get gradients of zeros.
    context : Device or sequence of Device
    fixed_param_names : sequence of str
    seed : int
    group2ctx, group
        See `Module`; the groups of the default bucket's symbol are those of all.

    Notes
    -----
    Parameters, gradients, state, optimizer and store are those of one module, and working
    memory is one pool, as large as the largest bucket needs.

    With a ``dist`` store the ranks need not take the same bucket at the same step, since the
    gradients that are summed are the same list on all of them; but they need equally many
    steps. `BucketSentenceIter` lets all ranks take the same, so that none waits for one with
    longer sequences.
    """

    def __init__(  # noqa: PLR0913 (as Module)
        self,
        sym_gen: Generate,
        default_bucket_key: Hashable = None,
        context: Device | Sequence[Device] = CPU,
        fixed_param_names: Sequence[str] | None = None,
        seed: int = 0,
        group2ctx: Mapping[str, Any] | None = None,
        group: Group | None = None,
    ) -> None:
        if default_bucket_key is None:
            raise ConfigError("BucketingModule: got no default_bucket_key, needed the longest")
        self._generate, self._default_key = sym_gen, default_bucket_key
        self._options: dict[str, Any] = {
            "context": context, "seed": seed, "group2ctx": group2ctx, "group": group,
        }  # fmt: skip
        self._fixed = list(fixed_param_names or ())
        self._modules: dict[Hashable, Module] = {}
        self._current = self._default = self._module(default_bucket_key)
        self._places = self._default._places
        self._requests: dict[str, Any] = {}
        self._known: tuple[Params, Params] | None = None  # until they are in the executors

    @staticmethod
    def load(
        prefix: str | Path, epoch: int, sym_gen: Generate, default_bucket_key: Hashable,
        **options: Any,
    ) -> "BucketingModule":  # fmt: skip
        """Return a module with the parameters of a checkpoint; ``options`` as for the class."""
        module = BucketingModule(sym_gen, default_bucket_key, **options)
        module._known = load_checkpoint(prefix, epoch)[1:]
        return module

    def _module(self, key: Hashable) -> Module:
        symbol, data_names, label_names = self._generate(key)
        arguments = symbol.list_arguments()
        fixed = [name for name in self._fixed if name in arguments]
        return Module(symbol, data_names, label_names, fixed_param_names=fixed, **self._options)

    @property
    def symbol(self) -> Symbol:
        """The symbol of the bucket that is in use."""
        return self._current.symbol

    @property
    def binded(self) -> bool:
        """Whether there are executors."""
        return self._default.binded

    @property
    def params_initialized(self) -> bool:
        """Whether the parameters have values."""
        return self._default.params_initialized

    @property
    def bucket_keys(self) -> list[Hashable]:
        """The buckets that have been in use."""
        return list(self._modules)

    def bind(  # type: ignore[override]
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        grad_req: str = "write",
    ) -> None:
        """Make executors for the default bucket; arguments as for `Module.bind`."""
        if self.binded and not force_rebind:
            return
        self._requests = {
            "for_training": for_training, "inputs_need_grad": inputs_need_grad,
            "grad_req": grad_req,
        }  # fmt: skip
        self._default.bind(
            data_shapes, label_shapes, force_rebind=force_rebind, **self._requests
        )
        self._modules = {self._default_key: self._default}
        self._current = self._default
        if self._known is not None:
            self._default.set_params(*self._known)
            self._known = None

    def switch_bucket(
        self,
        bucket_key: Hashable,
        data_shapes: Sequence[Any] | None,
        label_shapes: Sequence[Any] | None = None,
    ) -> None:
        """Use another bucket from now on; it is made if it is new.

        Parameters
        ----------
        bucket_key : hashable
        data_shapes, label_shapes : sequence of DataDesc, or of (name, shape)
        """
        if not self.binded:
            raise ConfigError("BucketingModule: it is not bound to shapes; call bind first")
        if bucket_key not in self._modules:
            if data_shapes is None:
                raise ConfigError(
                    f"BucketingModule: got the new bucket {bucket_key!r} without shapes, "
                    "needed provide_data in the batch"
                )
            made = self._module(bucket_key)
            made.bind(data_shapes, label_shapes, shared_module=self._default, **self._requests)
            made.borrow_optimizer(self._default)
            self._modules[bucket_key] = made
        self._current = self._modules[bucket_key]

    def init_params(self, initializer: Any = None, **options: Any) -> None:
        """Give parameters and state their values; see `Module.init_params`."""
        self._default.init_params(initializer, **options)

    def get_params(self) -> tuple[Params, Params]:
        """Return copies of parameters and state."""
        return self._default.get_params()

    def set_params(
        self, arg_params: Mapping[str, Any], aux_params: Mapping[str, Any], **options: Any
    ) -> None:
        """Set parameters and state; see `Module.set_params`."""
        self._default.set_params(arg_params, aux_params, **options)

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the one optimizer and store; see `Module.init_optimizer`."""
        self._default.init_optimizer(kvstore, optimizer, optimizer_params, force_init)
        for module in self._modules.values():
            module.borrow_optimizer(self._default)

    @property
    def kvstore(self) -> KVStore:
        """The store."""
        return self._default.kvstore

    @property
    def updater(self) -> Updater:
        """The optimizer with its state."""
        return self._default.updater

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch by the symbol of its bucket."""
        self.switch_bucket(
            data_batch.bucket_key, data_batch.provide_data, data_batch.provide_label
        )
        self._current.forward(data_batch, is_train)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last batch."""
        self._current.backward(out_grads)

    def update(self) -> None:
        """Update all parameters by the gradients, summed over devices and ranks."""
        self._default.update()

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last batch, padding included."""
        return self._current.get_outputs()

    def get_input_grads(self) -> list[Any]:
        """Return the gradients of the data."""
        return self._current.get_input_grads()

    def update_metric(self, eval_metric: Any, labels: Sequence[Any]) -> None:
        """Add the real rows of the last batch to a metric."""
        self._current.update_metric(eval_metric, labels)

    def end_epoch(self) -> None:
        """Let all devices and ranks have the mean of the running statistics."""
        self._default.end_epoch()

    def add_ranks(self, sums: np.ndarray) -> None:
        """Sum over the ranks of a ``dist`` store."""
        self._default.add_ranks(sums)

    def save_checkpoint(
        self, prefix: str | Path, epoch: int, save_optimizer_states: bool = False
    ) -> None:
        """Write the default bucket's symbol, and the parameters; see `Module`."""
        self._default.save_checkpoint(prefix, epoch, save_optimizer_states)
