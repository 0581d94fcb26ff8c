# A cluster whose MPI is Open MPI.
# Sourced by the scripts of jobs/ where HPCTRAIN_SITE=generic-openmpi.  Copy it, and load your modules:
# module purge; module load openmpi python

# Open MPI 5 speaks only PMIx; with another type `srun` would start each rank on its own.
export HPCTRAIN_SRUN_MPI=${HPCTRAIN_SRUN_MPI:-pmix}
if ! srun --mpi=list 2>&1 | grep -q "\b$HPCTRAIN_SRUN_MPI\b"; then export LAUNCH=${LAUNCH:-mpirun}; fi
