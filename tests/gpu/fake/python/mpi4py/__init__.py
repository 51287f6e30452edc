"""An mpi4py without MPI: processes of this machine meet in the folder STORE, RANK and WORLD_SIZE say who they are."""
