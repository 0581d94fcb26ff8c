"""Records on disk and how they reach a training step.

A data set is a folder of *shards* (HDF5 files with one dataset per field, axis 0 the record,
and a ``manifest.json`` that is written last), or the user's own HDF5 files as they are.
`open_records` numbers all records of all files from 0; `Records.read` takes any numbers in
any order and reads whole blocks, or straight from the mapped file.  `sampler` says in which
order an epoch goes: a pure function of seed and epoch, the same for any number of ranks;
each rank takes its part of each global batch.  `Loader` has the next batches ready by the
engine's ``io`` lane.  `iterators` gives batches in MXNet's words.

Data files come from others: what is not plain numbers inside its own file is refused
(`hdf5`), names in a manifest cannot lead out of the folder (`manifest`), and `verify` names
every damaged file before a run starts.
"""

import os

# Filter plugins are shared libraries, and no data file may load one.  HDF5 looks at this when
# h5py is first imported, so it stands before the imports; a value that the user has set stays.
os.environ.setdefault("HDF5_PLUGIN_PRELOAD", "::")

from hpctrain.io.augment import RandomShift
from hpctrain.io.batches import DataBatch, DataDesc, DataIter, ResizeIter
from hpctrain.io.buckets import BucketSentenceIter
from hpctrain.io.inspect import describe
from hpctrain.io.iterators import NDArrayIter, RecordIter
from hpctrain.io.layouts import Column, open_records
from hpctrain.io.loader import Batch, Loader
from hpctrain.io.manifest import Field, Manifest, Shard
from hpctrain.io.records import Records
from hpctrain.io.sampler import EpochPlan, Plan
from hpctrain.io.verify import refuse
from hpctrain.io.writer import ShardWriter, write_manifest, write_shard

__all__ = [
    "Batch",
    "BucketSentenceIter",
    "Column",
    "DataBatch",
    "DataDesc",
    "DataIter",
    "EpochPlan",
    "Field",
    "Loader",
    "Manifest",
    "NDArrayIter",
    "Plan",
    "RandomShift",
    "RecordIter",
    "Records",
    "ResizeIter",
    "Shard",
    "ShardWriter",
    "describe",
    "open_records",
    "refuse",
    "write_manifest",
    "write_shard",
]
