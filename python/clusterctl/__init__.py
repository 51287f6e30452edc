"""Turn machines that answer ssh into one proven MPI/NCCL cluster."""

__version__ = "0.2.0"
