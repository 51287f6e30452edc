/* Says who a rank is and which libmpi it really runs on, one JSON line a rank, and checks that the ranks can sum up.
 *
 * The path is read from /proc/self/maps and resolved: what the loader mapped, not what a variable promised.
 */
#include <limits.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_MAX_BYTES (PATH_MAX + 256)

static void mapped_libmpi(char path[PATH_MAX])
{
    char line[LINE_MAX_BYTES];
    FILE *maps = fopen("/proc/self/maps", "r");

    path[0] = '\0';
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        char *start = strchr(line, '/');
        char *base = start == NULL ? NULL : strrchr(start, '/');
        if (base != NULL && strncmp(base, "/libmpi.so", strlen("/libmpi.so")) == 0) {
            start[strcspn(start, "\n")] = '\0';
            if (realpath(start, path) == NULL) {
                snprintf(path, PATH_MAX, "%s", start);
            }
            break;
        }
    }
    if (maps != NULL) {
        fclose(maps);
    }
}

/* Appends text as a JSON string; what does not fit is cut, which no name or path here comes near. */
static size_t quote(char *out, size_t room, const char *text)
{
    size_t used = 0;

    out[used++] = '"';
    for (; *text != '\0' && used + 8 < room; text++) {
        unsigned char c = (unsigned char) *text;
        if (c == '"' || c == '\\') {
            out[used++] = '\\';
            out[used++] = (char) c;
        } else if (c < 0x20) {
            used += (size_t) snprintf(out + used, room - used, "\\u%04x", c);
        } else {
            out[used++] = (char) c;
        }
    }
    out[used++] = '"';
    out[used] = '\0';
    return used;
}

int main(int argc, char **argv)
{
    static char host[MPI_MAX_PROCESSOR_NAME], version[MPI_MAX_LIBRARY_VERSION_STRING], path[PATH_MAX];
    static char quoted_host[2 * MPI_MAX_PROCESSOR_NAME + 16], quoted_version[2 * MPI_MAX_LIBRARY_VERSION_STRING + 16];
    static char quoted_path[2 * PATH_MAX + 16];
    int rank, size, length;
    long mine, sum = 0;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Get_processor_name(host, &length);
    MPI_Get_library_version(version, &length);
    version[strcspn(version, "\n")] = '\0';
    mapped_libmpi(path);

    quote(quoted_host, sizeof quoted_host, host);
    quote(quoted_version, sizeof quoted_version, version);
    quote(quoted_path, sizeof quoted_path, path);
    printf("{\"rank\": %d, \"size\": %d, \"host\": %s, \"library_version\": %s, \"library_path\": %s}\n",
           rank, size, quoted_host, quoted_version, quoted_path);
    fflush(stdout);

    mine = rank + 1;
    MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
    MPI_Finalize();
    if (sum != (long) size * (size + 1) / 2) {
        fprintf(stderr, "rank %d: the sum of 1..%d came out as %ld\n", rank, size, sum);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
