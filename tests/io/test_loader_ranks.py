"""Data over real ranks: each record once, and each file checked by one rank."""

import numpy as np

from hpctrain.engine import ThreadedEngine
from hpctrain.io import Loader, Plan, open_records


def test_real_ranks_together_see_each_record_once(made, comm):
    records, counts = open_records(made[0]), np.zeros(100, np.int64)

    with ThreadedEngine() as engine:
        loader = Loader(records, Plan(100, 24, seed=3), comm.rank, comm.size, engine)
        for batch in loader.epoch(0):
            np.testing.assert_array_equal(batch.inputs[1], made[1]["wave"][batch.ids])
            counts[batch.ids] += 1
    total = np.empty_like(counts)
    comm.Allreduce(counts, total)

    np.testing.assert_array_equal(total, np.ones(100))


def test_weights_over_unequal_ranks_add_up_to_the_mean(made, comm):
    records = open_records(made[0])
    loader = Loader(records, Plan(100, 7), comm.rank, comm.size)

    for batch in loader.epoch(2):
        share = np.array(batch.targets[0].sum() / batch.global_count)
        mean = np.empty_like(share)
        comm.Allreduce(share, mean)
        whole = Plan(100, 7).epoch(2).batch(batch.step)[0]
        np.testing.assert_allclose(mean, made[1]["label"][whole].mean(), rtol=1e-12)


def test_ranks_share_the_checking(made, comm):
    for name in ("shard-00000.h5", "shard-00002.h5"):
        with open(made[0] / name, "r+b") as file:
            file.write(b"?")
    found = open_records(made[0]).verify(comm.rank, comm.size)

    total = np.empty(1, np.int64)
    comm.Allreduce(np.array([len(found)], np.int64), total)

    assert total[0] == 2
