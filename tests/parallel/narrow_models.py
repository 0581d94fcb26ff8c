"""A model whose products are large enough for factors of bfloat16."""

from dataclasses import dataclass, replace

import numpy as np
from replicas import Model

from hpctrain import ops
from hpctrain.nn import Parameter

F4 = np.dtype(np.float32)


@dataclass
class Narrow(Model):
    narrow: bool = True

    @property
    def objective(self):
        return replace(super().objective, narrow=self.narrow)


def narrow_mlp(narrow=True):
    """Two layers, 64 to 5 classes."""
    rng = np.random.default_rng(3)
    made = {}
    for name, shape in {"w1": (512, 64), "b1": (512,), "w2": (5, 512), "b2": (5,)}.items():
        made[name] = Parameter(name, shape, F4)
        made[name].set_data(rng.normal(0, 0.1, shape).astype(F4))
    model = Narrow(made, None, narrow=narrow)

    def net(x):
        t = model.tensor
        return ops.dense(ops.relu(ops.dense(x, t("w1"), t("b1"))), t("w2"), t("b2"))

    model.net = net
    return model
