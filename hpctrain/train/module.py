"""`Module`: a symbol that is trained, on devices of this rank and on many ranks."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpctrain.autograd import Tensor
from hpctrain.backend import CPU, Device
from hpctrain.comm.group import Group
from hpctrain.errors import ConfigError
from hpctrain.io import DataBatch, DataDesc
from hpctrain.nn.context import as_devices
from hpctrain.nn.initializer import Uniform
from hpctrain.parallel import kvstore as stores
from hpctrain.parallel.kvstore import KVStore
from hpctrain.parallel.updater import Updater
from hpctrain.symbol import Symbol
from hpctrain.train.bound import Bound, bound_to
from hpctrain.train.executors import label_shapes_of
from hpctrain.train.loops import Loops
from hpctrain.train.params import Params, load_checkpoint, load_params, save_checkpoint
from hpctrain.train.places import as_places
from hpctrain.train.store import ParameterStore, make_updater
from hpctrain.train.values import check_names, named_in, set_values, tensors_of, update_metric

__all__ = ["Module", "load_checkpoint", "load_params", "save_checkpoint"]


class Module(Loops):
    """A symbol with parameters, optimizer and store.

    Parameters
    ----------
    symbol : Symbol
    data_names, label_names : sequence of str
        Arguments that batches bring.
    context : Device or sequence of Device
        A batch is divided over several ones.
    fixed_param_names : sequence of str
        Parameters that are not trained.
    seed : int
        Of first values and of random numbers.
    group2ctx : mapping of str to (int or sequence of int), optional
        The rank of each ``ctx_group``, or its ranks, one for each copy of the model.
    group : Group, optional
        In which ranks are counted; all of them if None.

    Notes
    -----
    With ``group2ctx`` a rank has the parameters of its groups alone, and all read the same
    batches. All methods but `forward`, `backward` and `update` are collective, and return the
    same on every rank; copies divide a batch as devices do. See `hpctrain.train.places`.

    With a ``dist`` store every rank reads its own part of the data, gradients are summed over
    devices and ranks, and `fit`, `score`, `update` and `save_checkpoint` are collective.
    """

    def __init__(  # noqa: PLR0913 (MXNet's signature)
        self,
        symbol: Symbol,
        data_names: Sequence[str] = ("data",),
        label_names: Sequence[str] | None = ("softmax_label",),
        context: Device | Sequence[Device] = CPU,
        fixed_param_names: Sequence[str] | None = None,
        seed: int = 0,
        group2ctx: Mapping[str, Any] | None = None,
        group: Group | None = None,
    ) -> None:
        self.symbol, self.data_names = symbol, list(data_names)
        arguments = named_in(symbol, (*self.data_names, *(fixed_param_names or ())))
        self.label_names = [name for name in label_names or () if name in arguments]
        given = [*self.data_names, *self.label_names]
        self.param_names = [name for name in arguments if name not in given]
        self.aux_names = symbol.list_auxiliary_states()
        fixed = frozenset(fixed_param_names or ())
        self._trained = [name for name in self.param_names if name not in fixed]
        self._devices, self._seed = as_devices(context), seed
        self._places = as_places(group2ctx, symbol, group)
        self._executors: Bound | None = None
        self._params: tuple[Params, Params] | None = None  # until they are in the executors
        self._store: ParameterStore | None = None
        self._states: Path | None = None
        self._batch: DataBatch | None = None
        self.params_initialized = self.for_training = False

    @staticmethod
    def load(
        prefix: str | Path, epoch: int, load_optimizer_states: bool = False, **options: Any
    ) -> "Module":
        """Return a module from a checkpoint; ``options`` are those of `Module`."""
        symbol, args, aux = load_checkpoint(prefix, epoch)
        module = Module(symbol, **options)
        module._params = (args, aux)
        if load_optimizer_states:
            module._states = Path(f"{prefix}-{epoch:04d}.states")
        return module

    @property
    def binded(self) -> bool:
        """Whether there are executors."""
        return self._executors is not None

    @property
    def _bound(self) -> Bound:
        if self._executors is None:
            raise ConfigError("module: it is not bound to shapes; call bind first")
        return self._executors

    def bind(  # type: ignore[override]  # noqa: PLR0913 (MXNet's signature)
        self,
        data_shapes: Sequence[Any],
        label_shapes: Sequence[Any] | None = None,
        for_training: bool = True,
        inputs_need_grad: bool = False,
        force_rebind: bool = False,
        shared_module: "Module | None" = None,
        grad_req: str = "write",
    ) -> None:
        """Make executors for batches of these shapes; other batch sizes work as well.

        Parameters
        ----------
        data_shapes, label_shapes : sequence of DataDesc, or of (name, shape)
        for_training, inputs_need_grad, force_rebind : bool
            Whether to prepare for gradients, for those of the data, and to bind anew.
        shared_module : Module, optional
            Whose parameters, state, gradients and working memory are used as they are.
        grad_req : {"write", "add", "null"}
        """
        if self.binded and not force_rebind:
            return
        if self.binded and self.params_initialized:
            self._params = self.get_params()
        data = [DataDesc(*desc) for desc in data_shapes]
        label = [DataDesc(*d) for d in label_shapes or ()]
        wanted = [*self._trained, *(self.data_names if inputs_need_grad else ())]
        requests = dict.fromkeys(self.symbol.list_arguments(), "null")
        requests |= dict.fromkeys(wanted if for_training else (), grad_req)
        self.for_training = for_training
        label = label or label_shapes_of(self.symbol, data, self.label_names)
        shared = None if shared_module is None else shared_module._bound
        descs = (data, label, requests, self._seed)
        self._executors = bound_to(self.symbol, self._devices, descs, self._places, shared)
        if shared_module is not None:
            self.params_initialized = shared_module.params_initialized
        elif self._params is not None:
            self.init_params(force_init=True)

    def init_params(  # type: ignore[override]
        self,
        initializer: Any = None,
        arg_params: Mapping[str, Any] | None = None,
        aux_params: Mapping[str, Any] | None = None,
        allow_missing: bool = False,
        force_init: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Give parameters and state their values, the same on every rank.

        Parameters
        ----------
        initializer : str, Initializer or None
            ``Uniform(0.01)`` if None. A variable's own one, and those for biases and
            normalisation, go before it.
        arg_params, aux_params : mapping of str to Tensor, optional
            Values that are given.
        allow_missing, allow_extra, force_init : bool
            Whether to initialise what is not given, if any is; to leave out what the symbol
            has no use for; to begin anew if there are values already.
        """
        if self.params_initialized and not force_init:
            return
        loaded = self._params or ({}, {})
        known = {**loaded[0], **loaded[1], **(arg_params or {}), **(aux_params or {})}
        check_names([*self.param_names, *self.aux_names], known, allow_missing, allow_extra)
        init = Uniform(0.01) if initializer is None else initializer
        for names, aux in ((self.param_names, False), (self.aux_names, True)):
            set_values(self._bound, self.symbol, names, aux, known, init, self._seed)
        self.params_initialized, self._params = True, None
        if self._store is not None:
            self._store.replace(self._bound)

    def get_params(self) -> tuple[Params, Params]:
        """Return copies of parameters and state; state is the mean over the devices."""
        args, aux = map(tensors_of, self._bound.host(self.param_names, self.aux_names))
        return args, aux

    def set_params(
        self,
        arg_params: Mapping[str, Any],
        aux_params: Mapping[str, Any],
        allow_missing: bool = False,
        allow_extra: bool = False,
    ) -> None:
        """Set parameters and state; with ``allow_missing`` the others stay as they are."""
        known = {**arg_params, **aux_params}
        if allow_missing and self.params_initialized:
            args, aux = self.get_params()
            known = {**args, **aux, **known}
        self.init_params(None, known, None, allow_missing, True, allow_extra)

    def init_optimizer(
        self,
        kvstore: Any = "local",
        optimizer: Any = "sgd",
        optimizer_params: Any = (("learning_rate", 0.01),),
        force_init: bool = False,
    ) -> None:
        """Make the optimizer, and the store that it runs in; arguments as for `fit`.

        With a ``dist`` store collective: the ranks take rank 0's parameters and state.
        """
        if self._store is not None and not force_init:
            return
        kvstore = stores.create(kvstore) if isinstance(kvstore, str) else kvstore
        rows = self._bound.rows * (kvstore.num_workers if kvstore else 1)
        names = self._trained
        updater = make_updater(optimizer, optimizer_params, self.symbol, names, 1 / rows)
        self._store = ParameterStore(self._bound, kvstore, updater, names, self.aux_names)
        if self._states is not None:
            self._store.load_states(self._bound, self._states)
        self._states = None

    def borrow_optimizer(self, shared_module: "Module") -> None:
        """Use optimizer and store of a module that has the same parameters."""
        self._store = shared_module._store

    @property
    def _parameters(self) -> ParameterStore:
        if self._store is None:
            raise ConfigError("module: there is no optimizer; call init_optimizer first")
        return self._store

    @property
    def kvstore(self) -> KVStore:
        """The store."""
        return self._parameters.kv

    @property
    def updater(self) -> Updater:
        """The optimizer with its state; ``updater.lr`` may be set at any time."""
        return self._parameters.updater

    def forward(self, data_batch: DataBatch, is_train: bool | None = None) -> None:
        """Compute the outputs of a batch; in training mode if bound for it, unless told."""
        training = self.for_training if is_train is None else is_train
        rank = self._store.kv.rank if self._store is not None else 0
        self._batch = data_batch
        self._bound.forward(data_batch, training, rank * self._bound.rows)

    def backward(self, out_grads: Any = None) -> None:
        """Compute the gradients of the last batch, from cotangents of the outputs if given."""
        self._bound.backward([out_grads] if isinstance(out_grads, Tensor) else out_grads)

    def update(self) -> None:
        """Update the parameters by the gradients, summed over devices and ranks."""
        self._parameters.update(self._bound)

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last batch, padding included."""
        return self._bound.outputs()

    def get_input_grads(self) -> list[Any]:
        """Return the gradients of the data; needs ``inputs_need_grad`` at binding."""
        return self._bound.input_grads()

    def update_metric(self, eval_metric: Any, labels: Sequence[Any]) -> None:
        """Add the real rows of the last batch to a metric."""
        assert self._batch is not None, "update_metric: call forward first"
        add = partial(update_metric, eval_metric, labels=labels, batch=self._batch)
        self._bound.measure(eval_metric, add)

    def end_epoch(self) -> None:
        """Let all devices and ranks have the mean of the running statistics."""
        self._parameters.average_state(self._bound)

    def add_ranks(self, sums: np.ndarray) -> None:
        """Sum over the ranks of a ``dist`` store; without one nothing is to be added."""
        if self._store is not None:
            self._store.add_ranks(sums)

    def save_checkpoint(
        self, prefix: str | Path, epoch: int, save_optimizer_states: bool = False
    ) -> None:
        """Write symbol, parameters and perhaps the optimizer's state, by rank 0.

        Collective with a ``dist`` store. The state goes to ``prefix-%04d.states``.
        """
        if self._store is None or self._store.kv.rank == 0:
            args, aux = map(tensors_of, self._bound.host(self.param_names, self.aux_names, 0))
            if self._bound.writes:
                save_checkpoint(prefix, epoch, self.symbol, args, aux)
        if save_optimizer_states:
            self._parameters.save_states(self._bound, f"{prefix}-{epoch:04d}.states")
        elif self._store is not None:
            self._store.kv.barrier()
        self._bound.barrier()
