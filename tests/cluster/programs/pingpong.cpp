// A benchmark as users know them: ping-pong between halves of the ranks, with checked payload. Rank i is the partner of
// rank i + size/2, so with equal slots each pair crosses the network.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

namespace {

double roundtrip(int partner, bool first, std::vector<unsigned char> &data, int rounds)
{
    const int bytes = static_cast<int>(data.size());
    MPI_Barrier(MPI_COMM_WORLD);
    const double began = MPI_Wtime();
    for (int round = 0; round < rounds; ++round) {
        if (first)
            MPI_Send(data.data(), bytes, MPI_BYTE, partner, round, MPI_COMM_WORLD);
        MPI_Recv(data.data(), bytes, MPI_BYTE, partner, round, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        if (!first) {
            for (unsigned char &one : data)
                ++one; // the echo differs from what was sent, so a lost or doubled message shows
            MPI_Send(data.data(), bytes, MPI_BYTE, partner, round, MPI_COMM_WORLD);
        }
    }
    return (MPI_Wtime() - began) / rounds;
}

} // namespace

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank = 0, size = 1;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    const int rounds = argc > 1 ? std::atoi(argv[1]) : 100, repeats = 7, half = size / 2;
    const bool first = rank < half;
    const int partner = first ? rank + half : rank - half;

    for (int bytes = 1; bytes <= 65536; bytes *= 16) {
        std::vector<unsigned char> data(bytes);
        std::iota(data.begin(), data.end(), static_cast<unsigned char>(rank % half));
        roundtrip(partner, first, data, rounds); // connections are made
        std::vector<double> times(repeats);
        for (double &one : times)
            one = roundtrip(partner, first, data, rounds);
        std::nth_element(times.begin(), times.begin() + repeats / 2, times.end());
        // Both sides hold the same bytes now: the start, and one more for each round.
        unsigned char wanted = static_cast<unsigned char>(rank % half + (repeats + 1) * rounds);
        int wrong = 0, all_wrong = 0;
        for (unsigned char one : data)
            wrong += one != wanted++;
        MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, 0, MPI_COMM_WORLD);
        if (rank == 0)
            std::printf("%8d bytes %10.2f us one way %10.1f MB/s %d wrong\n", bytes, times[repeats / 2] / 2 * 1e6,
                        2 * bytes / times[repeats / 2] / 1e6, all_wrong);
    }
    MPI_Finalize();
}
