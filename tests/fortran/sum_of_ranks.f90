program sum_of_ranks
  use mpi_f08
  implicit none
  integer :: rank, size, total
  character(len=MPI_MAX_PROCESSOR_NAME) :: node
  integer :: length
  call MPI_Init()
  call MPI_Comm_rank(MPI_COMM_WORLD, rank)
  call MPI_Comm_size(MPI_COMM_WORLD, size)
  call MPI_Get_processor_name(node, length)
  call MPI_Allreduce(rank, total, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD)
  print '(a, i0, a, i0, 2a)', 'rank ', rank, ' sum ', total, ' on ', node(1:length)
  call MPI_Finalize()
end program
