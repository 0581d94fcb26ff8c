"""The sections and keys of a configuration, with their types, limits, defaults and meaning.

The string under a key is its documentation: ``config init``, ``--help`` and error messages
take it from here.
"""

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

__all__ = [
    "Config", "Data", "Device", "Exchange", "Loss", "Memory", "Model", "Optim", "Parallel",
    "Plain", "Run", "Section",
]  # fmt: skip

Plain = bool | int | float | str
Count = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
NonNegative = Annotated[float, Meta(ge=0)]
Fraction = Annotated[float, Meta(ge=0, lt=1)]


def _text(pattern: str, needed: str) -> Any:
    return Meta(pattern=pattern, extra={"needed": needed})


FileName = Annotated[
    str, _text(r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", "a file name of letters, digits and . _ -")
]
ModelName = Annotated[
    str,
    _text(
        r"^([A-Za-z_]\w*((\.\w+)*:[A-Za-z_]\w*)?|symbol:[^\0]+)\Z",
        "a model's name, package.module:function or symbol:FOLDER",
    ),
]
Steps = Annotated[str, _text(r"^(\d+:\d+)?\Z", "FIRST:LAST, two step numbers, or nothing")]
Duration = Annotated[
    str,
    _text(
        r"^(auto|(\d+-)?\d+(:\d\d){0,2})?\Z",
        "MINUTES, HOURS:MINUTES:SECONDS, DAYS-HOURS:MINUTES:SECONDS, auto or nothing",
    ),
]
Bytes = Annotated[
    str,
    _text(
        r"^(\d+(\.\d+)?(KiB|MiB|GiB|TiB))?\Z", "a number with KiB, MiB, GiB or TiB, or nothing"
    ),
]
Path = Annotated[str, _text(r"^[^\0]+\Z", "a path")]


class Section(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of the sections: immutable, and closed to keys that do not exist."""


class Run(Section, frozen=True):
    """How long the run lasts, and what it leaves behind."""

    name: FileName = "mnist"
    """name of the run; its files are in DIR/NAME"""
    dir: Path = "runs"
    """directory that holds the run directories"""
    seed: Count = 0
    """number from which all random numbers follow"""
    epochs: Positive = 10
    """passes over the training records"""
    max_steps: Count = 0
    """end after this many steps in all; 0: no limit"""
    resume: Path = "auto"
    """auto: go on with an unfinished run; never: begin anew; PATH: begin at that checkpoint"""
    log_every: Positive = 50
    """steps between two lines of the log"""
    checkpoint_every: Positive = 1
    """epochs between two checkpoints"""
    keep: Positive = 3
    """how many checkpoints to keep"""
    profile: Steps = ""
    """FIRST:LAST: write a timeline of these steps"""
    time_limit: Duration = ""
    """save and stop this long after the start, written as for Slurm; auto: the job's own end"""
    dry_run: bool = False
    """build everything, run one step, write nothing"""


class Model(Section, frozen=True):
    """What is trained."""

    name: ModelName = "lenet"
    """mlp, lenet, resnet20, lstm, gpt, cosmo, seq2seq, symbol:FOLDER, or module:function"""
    args: dict[str, Plain | list[Plain]] = field(default_factory=dict)
    """arguments for the function that builds the model"""


class Data(Section, frozen=True):
    """The records that it learns from."""

    train: Path = "data/mnist/train"
    """HDF5 file, or directory of files, with the training records"""
    test: Path = "data/mnist/test"
    """the same for the test records"""
    batch: Positive = 64
    """records in one batch, over all ranks together"""
    accumulate: Positive = 1
    """batches whose gradients make one step"""
    test_batch: Positive = 500
    """records in one batch of the test, over all ranks together"""
    inputs: list[str] = field(default_factory=list)
    """datasets that hold the inputs, in HDF5 files of your own"""
    targets: list[str] = field(default_factory=list)
    """datasets that hold what is to be predicted, in HDF5 files of your own"""
    shift: Count = 0
    """move each training image by up to this many pixels"""
    prefetch: Count = 2
    """batches to read ahead"""
    verify: bool = True
    """check the files against their digests before the first step"""
    cache_mib: Count = 256
    """memory for records already read, MiB per rank"""


class Loss(Section, frozen=True):
    """What is made small."""

    name: Literal["softmax_cross_entropy", "masked_softmax_cross_entropy", "mse"] = (
        "softmax_cross_entropy"
    )
    """softmax_cross_entropy for classes, masked_ for sequences padded by -1, mse for numbers"""


class Optim(Section, frozen=True):
    """How the parameters change at each step."""

    name: Literal["sgd", "adam", "adamw"] = "sgd"
    """sgd (with momentum), adam, or adamw (weight decay apart from the gradient)"""
    lr: Annotated[float, Meta(gt=0)] = 0.02
    """learning rate, at its highest"""
    momentum: Fraction = 0.9
    """share of the last change that is kept (sgd)"""
    nesterov: bool = False
    """take the gradient ahead of the momentum (adam, adamw: as in NAdam)"""
    beta1: Fraction = 0.9
    """decay of the mean of the gradients (adam, adamw)"""
    beta2: Fraction = 0.999
    """decay of the mean of their squares (adam, adamw)"""
    eps: Annotated[float, Meta(gt=0)] = 1e-8
    """added to the root of that mean (adam, adamw)"""
    weight_decay: NonNegative = 0.0
    """pull of the parameters towards zero"""
    clip_norm: NonNegative = 0.0
    """largest norm of the whole gradient; 0: no limit"""
    nonfinite: Literal["stop", "skip"] = "stop"
    """what an infinite or NaN gradient does: end the run, or skip the step on all ranks"""
    loss_scale: Annotated[float, Meta(gt=0, le=2**24)] = 1.0
    """factor on the loss, taken back from the gradient; only its start if nonfinite is skip"""
    sharded: bool = False
    """each rank keeps and updates its part of the optimizer's state, not all of it"""
    schedule: Literal["constant", "step", "cosine"] = "constant"
    """course of the learning rate after the warm-up"""
    warmup: NonNegative = 0.0
    """epochs in which the learning rate rises from zero"""
    step_every: Positive = 30
    """epochs between two steps of the schedule (step)"""
    step_factor: Annotated[float, Meta(gt=0, le=1)] = 0.1
    """factor of the learning rate at each such step (step)"""
    final_lr_fraction: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """where the schedule ends, as a share of lr (cosine)"""


class Exchange(Section, frozen=True):
    """How the ranks put their gradients together."""

    kind: Literal["allreduce", "server"] = "allreduce"
    """allreduce: every rank gets the sum of all gradients; server: some ranks update for all"""
    servers: Positive = 1
    """how many ranks serve: the first ones (server)"""
    mode: Literal["sync", "async", "bounded"] = "sync"
    """sync: one update for all workers; async: one for each, at once; bounded: see staleness"""
    staleness: Count = 2
    """as async, but no worker gets further ahead of the slowest than so many steps (bounded)"""
    compensation: Literal["auto", "none", "delay", "momentum"] = "auto"
    """of lateness: momentum: each worker has its own, one step ahead (DANA); delay: DC-ASGD"""
    delay_factor: NonNegative = 0.04
    """how much delay corrects"""
    tolerate: Count = 0
    """workers that may die while the others go on (async, bounded; mpirun --with-ft ulfm)"""
    checksum: bool = False
    """check every message between workers and servers (server)"""
    slice_mib: NonNegative = 0.0
    """of pieces in which gradients travel, MiB; 0: all if alone, up to 4 on one host, else 1"""
    path: Literal["auto", "mpi", "direct", "node"] = "auto"
    """mpi: its own collectives; direct: between pairs; node: memory, then pairs of hosts"""
    in_flight: Positive = 8
    """pieces that are under way at a time"""
    overlap: Literal["auto", "on", "off"] = "auto"
    """exchange while it computes; auto: between hosts, or where a core is free for it"""
    waiting: Literal["auto", "blocking", "polling"] = "auto"
    """the exchange's thread: waits inside MPI, or looks and sleeps; auto: is a core free?"""
    wire: Literal["none", "fp16", "bf16", "2bit", "topk"] = "none"
    """form of gradients on the way; sums are made in float32"""
    threshold: Annotated[float, Meta(gt=0)] = 0.5
    """what 2bit sends of a value at a time; what is owed is sent later"""
    ratio: Annotated[float, Meta(gt=0, le=1)] = 0.01
    """share of the values that topk sends; what is owed is sent later"""
    reproducible: Literal["run", "ranks"] = "run"
    """run: the same command gives the same bits; ranks: any number of ranks does, in float32"""
    shard: Positive = 8
    """samples of a batch that stay together if reproducible is ranks; costs speed if small"""
    tune: bool = False
    """try paths, sizes, overlap and schedules first, and keep the best for the next run"""
    stall_s: Annotated[float, Meta(gt=0)] = 60.0
    """tell what all ranks do when one has waited so many seconds for the others"""
    abort_s: NonNegative = 300.0
    """end the run, with exit code 124, when one has waited so many seconds; 0: never"""


class Parallel(Section, frozen=True):
    """How the ranks share one model; what is left are copies of it."""

    pipeline: Positive = 1
    """ranks that the layers of one model are spread over, in stages"""
    schedule: Literal["auto", "gpipe", "1f1b", "interleaved", "zero_bubble"] = "auto"
    """order of work; gpipe keeps most, 1f1b least; auto: 1f1b, or what tune finds"""
    micro_batches: Positive = 4
    """parts of a batch that go through the stages; the shards if reproducible is ranks"""
    chunks: Positive = 1
    """stages on each rank (interleaved)"""
    balance: Literal["time", "memory", "params"] = "time"
    """what the cut into stages makes even, unless the model names groups"""
    tensor: Positive = 1
    """ranks that share each layer, each having a part of its parameters"""
    sequence: bool = True
    """share what is between these layers, too: each rank has some steps of every sequence"""
    sync_bn: bool = False
    """batch normalisation by the statistics of the batch (stages: micro-batch) on all ranks"""


class Device(Section, frozen=True):
    """Where and how exactly it is computed."""

    kind: Literal["auto", "cpu", "gpu"] = "auto"
    """auto: a GPU where there is one"""
    precision: Literal["float32", "float64", "bf16"] = "float32"
    """type of parameters and arithmetic; bf16: float32, but factors of products are bfloat16"""
    threads: Count = 0
    """threads of one rank; 0: the cores of the host divided by its ranks"""
    pin: Literal["auto", "none"] = "auto"
    """auto: each thread of a rank keeps to one core, where these are the rank's own"""
    kernels: Literal["auto", "numpy"] = "auto"
    """whose kernels run on CPUs; auto: oneDNN's where it is installed, else NumPy's"""
    engine: Literal["threaded", "serial"] = "threaded"
    """serial: one task at a time, for finding faults"""

    @property
    def dtype(self) -> str:
        """The type of parameters, gradients and records."""
        return "float32" if self.precision == "bf16" else self.precision


class Memory(Section, frozen=True):
    """What a step may keep of the forward pass for the backward pass."""

    budget: Bytes = ""
    """most memory that the values of a step may take on a rank, as in 2GiB; empty: no limit"""
    recompute: Literal["auto", "sqrt", "off"] = "auto"
    """auto: what the budget asks for, and marked blocks; sqrt: all that helps; off: nothing"""


class Graph(Section, frozen=True):
    """How the captured model is improved."""

    fuse: Literal["auto", "on", "off"] = "auto"
    """one kernel for neighbouring element-wise operations; auto: where LLVM is installed"""


class Config(Section, frozen=True):
    """All settings of a run."""

    run: Run = field(default_factory=Run)
    model: Model = field(default_factory=Model)
    data: Data = field(default_factory=Data)
    loss: Loss = field(default_factory=Loss)
    optim: Optim = field(default_factory=Optim)
    exchange: Exchange = field(default_factory=Exchange)
    parallel: Parallel = field(default_factory=Parallel)
    device: Device = field(default_factory=Device)
    memory: Memory = field(default_factory=Memory)
    graph: Graph = field(default_factory=Graph)
