"""The model zoo: small models with all their shapes known, and the workloads they make.

Each module holds one model, a block with its sizes as arguments; the defaults are the sizes
that the benchmark uses. Images and volumes may have their channels first or last, which their
length tells unless it is said; they are transposed once at the entry, if need be, and keep
their channels last inside.
"""

from hpctrain.models.cosmo import Cosmo
from hpctrain.models.gpt import GPT
from hpctrain.models.lenet import LeNet
from hpctrain.models.lstm import LSTMModel
from hpctrain.models.mlp import MLP
from hpctrain.models.registry import create, names
from hpctrain.models.resnet import ResNet
from hpctrain.models.seq2seq import Seq2Seq, count_tokens, greedy, shifted
from hpctrain.models.workloads import Workload, small_workload, workload

__all__ = [
    "GPT", "MLP", "Cosmo", "LSTMModel", "LeNet", "ResNet", "Seq2Seq", "Workload",
    "count_tokens", "create", "greedy", "names", "shifted", "small_workload", "workload",
]  # fmt: skip
