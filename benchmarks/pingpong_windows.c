/* One-way latency between two ranks as the times of many short windows, for machines that do other work as well.
 *
 *     mpicc -O2 -o pingpong_windows benchmarks/pingpong_windows.c      # on a node; copy it to the other one
 *     mpirun --host node1:1,node2:1 -np 2 ./pingpong_windows 800
 *
 * A window has ten round trips. The scheduler disturbs some windows, and the 5th percentile leaves them out.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

enum { ROUND_TRIPS = 10, LARGEST = 65536 };

static int ascending(const void *left, const void *right)
{
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void send_to(int partner, char *data, int bytes)
{
    MPI_Send(data, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD);
}

static void receive_from(int partner, char *data, int bytes)
{
    MPI_Recv(data, bytes, MPI_CHAR, partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
    const int sizes[] = {1, 64, 1024, 4096, LARGEST};
    const int windows = argc > 1 ? atoi(argv[1]) : 800;
    char *data = calloc(1, LARGEST);
    double *us = calloc((size_t)windows, sizeof *us);
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        for (int window = 0; window < windows; window++) {
            const double began = MPI_Wtime();
            for (int trip = 0; trip < ROUND_TRIPS; trip++) {
                if (rank == 0)
                    send_to(1, data, sizes[i]);
                receive_from(1 - rank, data, sizes[i]);
                if (rank == 1)
                    send_to(0, data, sizes[i]);
            }
            us[window] = (MPI_Wtime() - began) / ROUND_TRIPS / 2 * 1e6;
        }
        qsort(us, (size_t)windows, sizeof *us, ascending);
        if (rank == 0)
            printf("%6d bytes: least %.2f us, 5th percentile %.2f us, quartile %.2f us, median %.2f us\n", sizes[i],
                   us[0], us[windows / 20], us[windows / 4], us[windows / 2]);
    }
    MPI_Finalize();
    return 0;
}
