"""The workloads of the benchmark in other frameworks, to be measured beside hpctrain.

Each module is a script for the Python that has the other framework installed; ``bench peers``
runs it as a file and reads its line of JSON. Nothing here is imported by hpctrain: no other
framework is inside. Models, shapes, losses and the optimizer (SGD with momentum 0.9, learning
rate 1e-3) are those of `hpctrain.models.workloads`; a step is forward, loss, backward and
update on one batch that stays; the median of all steps but the first five counts.
"""
