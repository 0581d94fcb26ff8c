# A cluster whose MPI is MPICH or made from it, or the mpich wheel of `make env`.
# Sourced by the scripts of jobs/ where HPCTRAIN_SITE=generic-mpich.  Copy it, and load your modules:
# module purge; module load mpich python

export HPCTRAIN_SRUN_MPI=${HPCTRAIN_SRUN_MPI:-pmi2} # MPICH 4 and later also speak pmix
