/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Loads an NCCL and tells which one it is: by ncclGetVersion, by the file that is mapped, and by the header that this
 * program was compiled against.
 *
 *   clusterctl-nccl-check                        the one that the loader finds
 *   clusterctl-nccl-check FILE                   that file
 *   clusterctl-nccl-check --prove HOME VERSION   the one that the loader finds has to be HOME's, of this version
 *
 * Prints one JSON line and exits 0, or exits 1 with a sentence on standard error.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nccl.h>

#define LIBRARY "libnccl.so.2"

static int complain(const char *format, ...) {
    char host[256] = "this host";
    va_list arguments;
    gethostname(host, sizeof host - 1);
    fprintf(stderr, "%s: ", host);
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return 1;
}

/* 22907 is 2.29.7; before 2.9 the code had one digit less for the minor number. */
static void spell(int code, char *text, size_t size) {
    int unit = code >= 10000 ? 10000 : 1000;
    snprintf(text, size, "%d.%d.%d", code / unit, code % unit / 100, code % 100);
}

/* The file that is mapped where a function lies; proc(5). */
static void mapped_file(const void *function, char *path) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[PATH_MAX + 256];
    path[0] = '\0';
    while (maps && fgets(line, sizeof line, maps)) {
        uintptr_t from, to;
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &from, &to, &at) >= 2 && at > 0 &&
            (uintptr_t)function >= from && (uintptr_t)function < to) {
            line[strcspn(line, "\n")] = '\0';
            snprintf(path, PATH_MAX, "%s", line + at);
            break;
        }
    }
    if (maps)
        fclose(maps);
}

/* Who but the cache decides: the variables of the session, where they are set. */
static const char *cause(char *text, size_t size) {
    const char *path = getenv("LD_LIBRARY_PATH"), *preload = getenv("LD_PRELOAD");
    if (preload && *preload)
        snprintf(text, size, "LD_PRELOAD is '%s': take it out of the session", preload);
    else if (path && *path)
        snprintf(text, size, "LD_LIBRARY_PATH is '%s', which goes before the loader's cache: take the folder out of it",
                 path);
    else
        snprintf(text, size, "'ldconfig -p' shows what the loader's cache holds: a file in /etc/ld.so.conf.d names a"
                             " folder with it, or ldconfig has not run");
    return text;
}

int main(int count, char **values) {
    int prove = count == 4 && !strcmp(values[1], "--prove");
    const char *asked = !prove && count == 2 ? values[1] : LIBRARY;
    char path[PATH_MAX], wanted_path[PATH_MAX], about[PATH_MAX + 256], found[32], header[32];
    int version = 0;

    if (!prove && count > 2)
        return complain("usage: %s [FILE | --prove HOME VERSION]", values[0]);
    void *library = dlopen(asked, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return complain("%s cannot be loaded (%s); %s.", asked, dlerror(), cause(about, sizeof about));
    ncclResult_t (*get_version)(int *);
    *(void **)&get_version = dlsym(library, "ncclGetVersion");
    if (!get_version)
        return complain("%s is no NCCL: it has no ncclGetVersion.", asked);
    if (get_version(&version) != ncclSuccess)
        return complain("%s does not tell its version.", asked);
    mapped_file(*(void **)&get_version, path);
    spell(version, found, sizeof found);
    spell(NCCL_VERSION_CODE, header, sizeof header);
    if (prove) {
        char place[PATH_MAX];
        snprintf(place, sizeof place, "%s/lib/" LIBRARY, values[2]);
        if (!realpath(place, wanted_path))
            return complain("%s is not there.", place);
        if (strcmp(path, wanted_path))
            return complain("the loader takes NCCL %s of %s instead of %s of %s; %s.", found, path, values[3],
                            wanted_path, cause(about, sizeof about));
        if (version != NCCL_VERSION_CODE)
            return complain("%s is NCCL %s, but the nccl.h beside it is of %s; run the role nccl again.", path, found,
                            header);
        if (strcmp(found, values[3]))
            return complain("%s is NCCL %s instead of %s; run the role nccl again.", path, found, values[3]);
    }
    printf("{\"version\": \"%s\", \"header\": \"%s\", \"path\": \"", found, header);
    for (const char *at = path; *at; at++)
        printf(*at == '"' || *at == '\\' ? "\\%c" : "%c", *at);
    printf("\"}\n");
    return 0;
}
